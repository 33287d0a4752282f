"""What can't be prepared: refused before anything is touched, each with the line to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from bitsandbytes.nn.modules import Linear8bitLt
from peft import PeftType
from torch import nn

from poros.dropin.selection import adapter_parameters
from poros.errors import PorosConfigError, PorosModelError
from poros.weights_index import short_list

Forward = Callable[..., Any]

_COMPILED = "the model is compiled, and a streamed layer can't be a part of its graph"
_NOT_COMPILED = (
    "leave out torch.compile(model), model.compile() or torch_compile=True, or use "
    "poros.prepare(model) without"
)
_GIVEN_AT_CALLS = {
    PeftType.PREFIX_TUNING: "puts keys and values before each layer by the KV cache",
    PeftType.POLY: "tells each layer its tasks by hooks that go after the forward",
}
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def refuse_several_processes() -> None:
    """Refuse a run on more than one process.

    Raises:
        PorosConfigError: There are several.
    """
    distributed = torch.distributed
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
    if size > 1:
        raise PorosConfigError(
            f"the world size is {size}, and Poros streams on one GPU",
            where="prepare()",
            remediation="start one process: `python script.py` in place of torchrun or "
            "accelerate launch, or unset WORLD_SIZE",
        )


def refuse_wrapped(model: object) -> None:
    """Refuse what is no model, or one inside a wrapper that copies or compiles it.

    Raises:
        PorosModelError: With the line to change.
    """
    if isinstance(model, _WRAPPERS):
        raise _refused(
            f"the model is a {type(model).__name__}, which makes replicas of it",
            "model = poros.prepare(model.module), and set CUDA_VISIBLE_DEVICES to one GPU",
        )
    if not isinstance(model, nn.Module):
        raise _refused(
            f"a {type(model).__name__} is no model",
            "give the model that from_pretrained or get_peft_model returned",
        )
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module.__dict__.get("_compiled_call_impl"):
            raise _refused(_COMPILED, _NOT_COMPILED)


def not_compiled(forward: Forward) -> Forward:
    """A streamed forward that refuses to be traced into a graph of its callers."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            _refuse_compiled()
        return forward(*args, **kwargs)

    return checked


# While it traces, the compiler takes no error; where it may not trace, it calls and gets one.
@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's
def _refuse_compiled() -> None:
    raise _refused(_COMPILED, _NOT_COMPILED)


def refuse_adapters(model: nn.Module) -> None:
    """Refuse adapters that give layers something at each call which a recompute would miss.

    Raises:
        PorosModelError: With the line to change.
    """
    configs = getattr(model, "peft_config", None)
    for config in configs.values() if isinstance(configs, dict) else ():
        kind = getattr(config, "peft_type", None)
        if kind in _GIVEN_AT_CALLS:
            raise _refused(
                f"{kind.value} {_GIVEN_AT_CALLS[kind]}, and the backward computes it again without",
                "another adapter, such as model = get_peft_model(model, LoraConfig(...))",
            )


def refuse_layers(model: nn.Module, layers: Sequence[nn.Module], path: str) -> None:
    """Refuse layers whose weights Poros can't move, or that are trained themselves.

    Args:
        model: The model around them.
        layers: The decoder layers.
        path: Where they are in it.

    Raises:
        PorosModelError: With the line to change.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    trained = []
    for layer in layers:
        adapters = {id(p) for p in adapter_parameters(layer)}
        for module in layer.modules():
            if isinstance(module, Linear8bitLt):
                raise _refused(
                    "its linears are int8, which bitsandbytes changes while it computes",
                    'BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")',
                )
        trained += [
            names[id(p)] for p in layer.parameters() if p.requires_grad and id(p) not in adapters
        ]
    if trained:
        raise _refused(
            f"{len(trained)} base weights in {path} are trained: {short_list(trained)}",
            "freeze them before: for p in model.parameters(): p.requires_grad = False; then "
            "model = get_peft_model(model, LoraConfig(...))",
        )
    devices = {tensor.device for tensor in model.parameters()}
    if any(device.type == "meta" for device in devices):
        raise _refused(
            "weights are on the meta device: they were offloaded, or never loaded",
            'from_pretrained(..., device_map={"": 0}), or device_map="cpu"',
        )
    if len(devices) > 1:
        raise _refused(
            f"its weights lie on {', '.join(sorted(map(str, devices)))}",
            'from_pretrained(..., device_map={"": 0}), or device_map="cpu"',
        )


def _refused(what: str, remediation: str) -> PorosModelError:
    return PorosModelError(what, where="prepare()", remediation=remediation)
