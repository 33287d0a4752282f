"""What a model that isn't in the table looks like: built on the meta device and looked through.

No name is matched: the decoder layers are the one list of modules that is as long as the config
says and holds linears, and whatever lies outside them stays resident.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import transformers
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros import experts
from poros.arch_registry import architectures, find_architecture, how_to_assert
from poros.arch_table import ArchSpec
from poros.errors import PorosArchNotValidatedError, PorosModelError
from poros.model_config import SIZES, check_config

_FOREIGN = ("attn_implementation", "_attn_implementation", "auto_map", "quantization_config")


@dataclass(frozen=True)
class Structure:
    """What was found.

    Attributes:
        hf_class: The class of transformers.
        layers_path: Where the decoder layers are.
        num_layers: How many there are.
        layer_classes: Their classes, each once.
        resident: The modules with tensors outside of them.
        lora_targets: The names of the linears inside.
        recurrent: Layers have a convolution or parameters that are neither weight nor bias, as
            those with a state along the sequence do.
    """

    hf_class: str
    layers_path: str
    num_layers: int
    layer_classes: tuple[str, ...]
    resident: tuple[str, ...]
    lora_targets: tuple[str, ...]
    recurrent: bool

    def __str__(self) -> str:
        """The structure in words."""
        return (
            f"{self.hf_class}, {self.num_layers} layers ({', '.join(self.layer_classes)}) at "
            f"{self.layers_path}; outside them {', '.join(self.resident)}; linears "
            f"{', '.join(self.lora_targets)}"
        )


def architecture_of(
    config: Mapping[str, Any], *, where: str = "config.json", arch_check: str = "error"
) -> ArchSpec:
    """The record that a config.json is run by.

    Args:
        config: Of a text model.
        where: The model, for messages.
        arch_check: ``error`` refuses a family that is neither in the table nor registered; else
            it runs by what is found in it.

    Raises:
        PorosArchNotValidatedError: The family is refused; what was found in it is told.
        PorosModelError: transformers can't build it, or it isn't a stack of decoder layers.
    """
    if experts.is_mixture(config):
        raise PorosArchNotValidatedError(
            f"model_type {config.get('model_type')!r} is {experts.REASON}",
            where=where,
            remediation=experts.MEND,
        )
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not (
        model_type in architectures() or model_type in CONFIG_MAPPING
    ):
        return find_architecture(model_type)
    if model_type in architectures():
        spec = find_architecture(model_type)
        known = spec.hf_class and spec.layers_path and spec.resident and spec.lora_targets
        return spec if known else _completed(spec, config, where)
    spec = ArchSpec(
        model_type=model_type, hf_class="", layers_path="", resident=(), lora_targets=()
    )
    spec = _completed(spec, config, where)
    if arch_check != "error":
        return spec
    raise PorosArchNotValidatedError(
        f"no architecture entry for model_type {model_type!r}; found in it: "
        f"{probe(config, where=where)}",
        where=where,
        remediation=f"{how_to_assert(model_type)}, or blockwise_arch_check: warn",
    )


def probe(config: Mapping[str, Any], *, layers_path: str = "", where: str) -> Structure:
    """Build the model without weights and say what it looks like.

    Args:
        config: Of a text model; nothing that it names is fetched or run.
        layers_path: Where the layers are; empty: they are looked for.
        where: The model, for messages.

    Raises:
        PorosModelError: transformers can't build it, or it isn't a stack of decoder layers.
    """
    return _probe(json.dumps(dict(config), sort_keys=True, default=str), layers_path, where)


@lru_cache(maxsize=4)
def _probe(config_text: str, layers_path: str, where: str) -> Structure:
    config = json.loads(config_text)
    model = _build(config, where)
    path = layers_path or _find_layers(model, config, where)
    layers = _layers_at(model, path, where)
    linears = _linear_names(layers)
    if not linears:
        kinds = {type(m).__name__ for m in layers.modules() if not list(m.children())}
        raise _refused(
            f"the layers at {path} hold no nn.Linear, only {', '.join(sorted(kinds))}", where
        )
    fused = [name for name, p in layers.named_parameters() if p.dim() > 2 and ".conv" not in name]
    if fused:
        raise _refused(
            f"{path}.{fused[0]} has {layers.get_parameter(fused[0]).dim()} dimensions and is not "
            "quantised to NF4, as fused experts are not",
            where,
        )
    return Structure(
        hf_class=type(model).__name__,
        layers_path=path,
        num_layers=len(layers),
        layer_classes=tuple(dict.fromkeys(type(layer).__name__ for layer in layers)),
        resident=tuple(_outside(model, "", path, where)),
        lora_targets=linears,
        recurrent=_may_be_recurrent(layers),
    )


def _completed(spec: ArchSpec, config: Mapping[str, Any], where: str) -> ArchSpec:
    """A user's record with what they left open."""
    found = probe(config, layers_path=spec.layers_path, where=where)
    return replace(
        spec,
        hf_class=spec.hf_class or found.hf_class,
        layers_path=found.layers_path,
        resident=spec.resident or found.resident,
        lora_targets=spec.lora_targets or found.lora_targets,
        recurrent=spec.recurrent or found.recurrent,
    )


def _build(config: dict[str, Any], where: str) -> nn.Module:
    own = {key: value for key, value in config.items() if not key.startswith(_FOREIGN)}
    model_type = str(config["model_type"])
    try:
        hf_config = CONFIG_MAPPING[model_type].from_dict(own)
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    except KeyError:
        raise _refused(
            f"transformers {transformers.__version__} has no causal language model of type "
            f"{model_type!r}",
            where,
        ) from None
    except Exception as error:  # transformers' strict dataclasses raise kinds of their own
        raise _unbuildable(model_type, error, where) from error
    _refuse_other_names(config, hf_config, where)
    spec = ArchSpec(model_type=model_type, hf_class=model_class.__name__)
    # No code of the model runs here; whether auto_map may stand in the config, the caller says.
    check_config(config, spec, where=where, trust_remote_code=True)
    try:
        with torch.device("meta"):
            model: nn.Module = model_class(hf_config)
    except Exception as error:
        raise _unbuildable(model_class.__name__, error, where) from error
    return model


def _refuse_other_names(config: dict[str, Any], hf_config: Any, where: str) -> None:
    """Sizes under names of old, such as ``n_embd``, are not read elsewhere in Poros."""
    for key, old in hf_config.attribute_map.items():
        if key in SIZES and key not in config:
            raise _refused(
                f"config.json has no {key}; {type(hf_config).__name__} calls it {old}", where
            )


def _find_layers(model: nn.Module, config: Mapping[str, Any], where: str) -> str:
    num_layers = config.get("num_hidden_layers")
    found = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) == num_layers
        and all(any(isinstance(m, nn.Linear) for m in layer.modules()) for layer in module)
    ]
    outermost: list[str] = [
        p for p in found if not any(p.startswith(f"{other}.") for other in found)
    ]
    if len(outermost) == 1:
        return outermost[0]
    lists = ", ".join(
        f"{path} ({len(module)})"
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList)
    )
    raise _refused(
        f"{type(model).__name__} has {f'{len(outermost)} lists' if outermost else 'no list'} of "
        f"{num_layers} layers with linears, expected one; lists in it: {lists or 'none'}",
        where,
    )


def _layers_at(model: nn.Module, path: str, where: str) -> nn.ModuleList:
    try:
        layers = model.get_submodule(path)
    except AttributeError:
        layers = None
    if isinstance(layers, nn.ModuleList) and len(layers):
        return layers
    kind = "nothing" if layers is None else f"a {type(layers).__name__}"
    raise _refused(
        f"layers_path {path!r} leads to {kind} in {type(model).__name__}, not a list of layers",
        where,
    )


def _outside(module: nn.Module, path: str, layers_path: str, where: str) -> Iterator[str]:
    """The largest modules that hold tensors and no layer."""
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if own:
        raise _refused(
            f"{path or type(module).__name__} holds the layers and {own[0][0]} of its own", where
        )
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if child_path == layers_path:
            continue
        if layers_path.startswith(f"{child_path}."):
            yield from _outside(child, child_path, layers_path, where)
        elif any(True for _ in child.parameters()) or any(True for _ in child.buffers()):
            yield child_path


def _linear_names(layers: nn.ModuleList) -> tuple[str, ...]:
    named = (name for name, m in layers.named_modules() if isinstance(m, nn.Linear))
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in named))


def _may_be_recurrent(layers: nn.ModuleList) -> bool:
    leaves = {name.rpartition(".")[2] for name, _ in layers.named_parameters()}
    convolves = any(isinstance(module, nn.Conv1d) for module in layers.modules())
    return convolves or not leaves <= {"weight", "bias"}


def _unbuildable(what: str, error: Exception, where: str) -> PorosModelError:
    first = str(error).partition("\n")[0]
    return PorosModelError(
        f"{what} can't be built from the config ({type(error).__name__}: {first})",
        where=where,
        remediation="restore the config.json that belongs to these weights",
    )


def _refused(what: str, where: str) -> PorosArchNotValidatedError:
    return PorosArchNotValidatedError(
        what,
        where=where,
        remediation="give the fields of its ArchSpec to poros.register_architecture, or use a "
        "model of another family; docs/architecture-support.md",
    )
