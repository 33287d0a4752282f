"""What a prepared model says of itself: the same as before, or a refusal in one line.

Placeholders hang where the layers' weights were. Who asks for sizes or bytes is shown the host's
copy instead; who would move, copy or pickle the model would get placeholders, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from poros.errors import PorosModelError
from poros.streaming.block import Block, seen_whole
from poros.streaming.live_checks import Turn
from poros.weights_index import short_list

_COUNTS = ("num_parameters", "get_memory_footprint", "get_nb_trainable_parameters")
_COPIES = ("__deepcopy__", "__reduce_ex__", "__copy__", "_replicate_for_data_parallel")
_MERGES = ("merge_adapter", "unmerge_adapter", "merge_and_unload")
_OWN_MERGES = ("merge", "unmerge")
_WITHOUT_THE_BASE = (True, False, "gaussian", "orthogonal")
"""Ways to begin an adapter that don't look at the weights under it."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)


class Answers:
    """Methods of a prepared model's modules, replaced on the modules themselves."""

    def __init__(self) -> None:
        """Nothing is replaced yet."""
        self._were: list[tuple[nn.Module, str, Any, bool]] = []

    def replace(
        self,
        around: Sequence[nn.Module],
        layers: Sequence[nn.Module],
        blocks: Sequence[Block],
        *,
        layers_per_block: int,
        device: torch.device,
        turn: Turn,
    ) -> None:
        """Replace them.

        Args:
            around: The modules that hold the layers.
            layers: The streamed layers.
            blocks: Theirs.
            layers_per_block: Layers that share one block.
            device: Where the model computes.
            turn: Kept from computing while the blocks are shown.
        """
        # Not what PEFT hands through to the model inside: that has its own.
        for module, name in _having(around, _COUNTS):
            self._set(module, name, _shown(getattr(module, name), blocks, turn))
        tuned = [m for layer in layers for m in layer.modules() if isinstance(m, BaseTunerLayer)]
        for module, name in [*_having(around, _MERGES), *_having(tuned, _OWN_MERGES)]:
            self._set(module, name, _refuse_merge)
        for module, name in _having(around, ["add_adapter"]):
            self._set(module, name, _without_the_base(getattr(module, name)))
        for position, layer in enumerate(layers):
            block = blocks[position // layers_per_block]
            self._set(layer, "state_dict", _shown(layer.state_dict, [block], turn))
        for module in [*around, *layers]:
            load = _without_the_layers(module, module.load_state_dict, blocks)
            self._set(module, "load_state_dict", load)
            self._set(module, "_apply", _unmoved(module, device))
            for name in _COPIES:
                self._set(module, name, _refuse_copy)

    def restore(self) -> None:
        """Give every module its own methods again."""
        for module, name, was, had in reversed(self._were):
            del module.__dict__[name]
            if had:
                module.__dict__[name] = was
        self._were = []

    def _set(self, module: nn.Module, name: str, method: Callable[..., Any]) -> None:
        own = module.__dict__
        self._were.append((module, name, own.get(name), name in own))
        own[name] = method


def _having(modules: Iterable[nn.Module], names: Sequence[str]) -> list[tuple[nn.Module, str]]:
    return [(module, name) for module in modules for name in names if hasattr(type(module), name)]


def _shown(method: Callable[..., Any], blocks: Sequence[Block], turn: Turn) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        with turn.stopped(), seen_whole(blocks):
            return method(*args, **kwargs)

    return answer


def _unmoved(module: nn.Module, device: torch.device) -> Callable[..., nn.Module]:
    """`Module._apply`, by which `to`, `cuda`, `half` and their like do all that they do."""

    def apply(change: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        del recurse
        for dtype in _DTYPES:
            probe = torch.empty(0, dtype=dtype, device=device)
            changed = change(probe)
            used = any(p.dtype == dtype for p in module.parameters())
            if used and (changed.device, changed.dtype) != (probe.device, probe.dtype):
                raise PorosModelError(
                    "a prepared model stays on its device and in its types",
                    where=type(module).__name__,
                    remediation="poros.unprepare(model) first, or move it before poros.prepare",
                )
        return module

    return apply


def _without_the_base(method: Any) -> Callable[..., Any]:
    """`add_adapter`, but for adapters whose first values are made from the layers' weights."""

    def add(*args: Any, **kwargs: Any) -> Any:
        for given in [*args, *kwargs.values()]:
            begins = getattr(given, "init_lora_weights", True)
            if getattr(given, "use_dora", False) or begins not in _WITHOUT_THE_BASE:
                raise PorosModelError(
                    "the adapter's first values come from the layers' weights, which are away",
                    where="add_adapter",
                    remediation="poros.unprepare(model) first, and prepare it with the adapter on",
                )
        return method(*args, **kwargs)

    return add


def _without_the_layers(
    module: nn.Module, method: Callable[..., Any], blocks: Sequence[Block]
) -> Callable[..., Any]:
    """`load_state_dict`, but for the layers' base weights, whose places are empty."""

    def load(state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        away = {id(holder) for block in blocks for holder in block.holders}
        named = module.named_parameters(remove_duplicate=False)
        names = [name for name, p in named if id(p) in away and name in state_dict]
        if names:
            raise PorosModelError(
                f"base weights of a prepared model's layers can't be loaded: {short_list(names)}",
                where="load_state_dict",
                remediation="poros.unprepare(model) first; the adapter alone can be loaded: "
                "model.load_adapter(folder, name)",
            )
        return method(state_dict, *args, **kwargs)

    return load


def _refuse_merge(*_: Any, **__: Any) -> Any:
    raise PorosModelError(
        "a prepared model can't take its adapter in: its layers' weights are away",
        where="a merge",
        remediation="poros.unprepare(model) first",
    )


def _refuse_copy(*_: Any, **__: Any) -> Any:
    raise PorosModelError(
        "a prepared model can't be copied, replicated or pickled: its layers' weights are away",
        where="a copy of the model",
        remediation="poros.unprepare(model) first; to keep the adapter: model.save_pretrained(...)",
    )
