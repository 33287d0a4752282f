"""A live model taken to pieces: where its layers are, what family it is, how precise."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import nn
from transformers import PreTrainedModel

from poros.arch_table import ArchSpec
from poros.errors import PorosArchNotValidatedError, PorosModelError
from poros.loading.probe import architecture_of
from poros.loading.record_check import check_transformers
from poros.model_config import is_prequantised, text_config, text_name

_DENSE = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


@dataclass(frozen=True)
class Anatomy:
    """What a model is made of.

    Attributes:
        outer: What the user gave.
        base: The model of transformers inside.
        around: The modules from `outer` down to the list of layers, each once.
        layers: The decoder layers.
        layers_path: Where they are in `base`.
        spec: The family's record.
        is_text: It is the text model alone, not a multimodal whole.
        precision: ``nf4``, ``bf16``, ``fp16`` or ``fp32``.
        accepted: The family is in the table, or registered.
    """

    outer: nn.Module
    base: PreTrainedModel
    around: tuple[nn.Module, ...]
    layers: nn.ModuleList
    layers_path: str
    spec: ArchSpec
    is_text: bool
    precision: str
    accepted: bool

    @property
    def name(self) -> str:
        """What the model's weights are called."""
        return str(getattr(self.base.config, "_name_or_path", "")) or type(self.base).__name__


def take_apart(model: nn.Module, *, arch_check: str) -> Anatomy:
    """Look a model through.

    Args:
        model: Of transformers, in whatever PEFT put around it.
        arch_check: ``error`` refuses a family that is neither in the table nor registered;
            ``warn`` says so, ``off`` doesn't.

    Raises:
        PorosArchNotValidatedError: The family is refused.
        PorosModelError: No model of transformers, or quantised in another way.
    """
    found = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    if not found:
        raise PorosModelError(
            f"there is no model of transformers in this {type(model).__name__}",
            where="prepare()",
            remediation="give the model that from_pretrained or get_peft_model returned",
        )
    base = found[0]
    config: dict[str, Any] = base.config.to_dict()
    where = f"prepare(), {type(base).__name__}"
    is_prequantised(config, where=where)
    text, wrapper = text_config(config, where=where)
    accepted = True
    try:
        spec = architecture_of(text, where=where)
    except PorosArchNotValidatedError as error:
        if arch_check == "error":
            raise
        spec, accepted = architecture_of(text, where=where, arch_check=arch_check), False
        if arch_check == "warn":
            warnings.warn(f"{error}; it runs, and nothing is claimed of it", stacklevel=4)
    check_transformers(spec)
    path = spec.layers_path
    is_text = wrapper is None or type(base).__name__ == spec.hf_class
    if wrapper is not None and not is_text:
        names = (name for name, _ in base.named_modules())
        path = next((n for n in names if text_name(f"{n}.", wrapper) == f"{path}."), path)
    layers = dict(base.named_modules()).get(path)
    if not isinstance(layers, nn.ModuleList) or not len(layers):
        raise PorosModelError(
            f"{type(base).__name__} has no list of decoder layers at {path}",
            where="prepare()",
            remediation="load it by AutoModelForCausalLM",
        )
    around = tuple(m for m in model.modules() if any(inner is layers for inner in m.modules()))
    precision = _precision(layers)
    return Anatomy(model, base, around, layers, path, spec, is_text, precision, accepted)


def _precision(layers: nn.Module) -> str:
    linears = [module for module in layers.modules() if isinstance(module, nn.Linear)]
    if any(isinstance(linear, Linear4bit) for linear in linears):
        return "nf4"
    frozen = [linear.weight.dtype for linear in linears if not linear.weight.requires_grad]
    kinds = {_DENSE.get(dtype, str(dtype)) for dtype in frozen}
    return "fp32" if "fp32" in kinds else "/".join(sorted(kinds)) or "fp32"
