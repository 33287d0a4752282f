"""The model without its weights: built on the meta device by transformers' own steps.

What `from_pretrained` does before and after it reads weights is done here by the same calls: the
context that the class is built in, the quantiser that replaces linears, and the initialiser that
computes non-persistent buffers. So the buffers have stock's bytes in every version.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    BitsAndBytesConfig,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.monkey_patching import patch_output_recorders
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.quantizers.base import HfQuantizer

from poros.arch_table import ArchSpec
from poros.errors import PorosModelError
from poros.loading.probe import architecture_of
from poros.loading.record_check import check_record, check_transformers


@dataclass
class Skeleton:
    """A model whose parameters are on the meta device and whose computed buffers are filled.

    Attributes:
        model: As `from_pretrained` has it before it reads weights.
        quantizer: transformers' quantiser; None for dense weights.
        layers: The decoder layers, in order.
        tied: Parameter names that share another one's tensor, and which.
    """

    model: PreTrainedModel
    quantizer: HfQuantizer | None
    architecture: ArchSpec
    layers: list[nn.Module]
    tied: dict[str, str]

    @property
    def layer_prefixes(self) -> list[str]:
        """``model.layers.0.`` and so on."""
        path = self.architecture.layers_path
        return [f"{path}.{index}." for index in range(len(self.layers))]


def build_skeleton(
    config: Mapping[str, Any],
    *,
    architecture: ArchSpec | None = None,
    quantization: str,
    dtype: torch.dtype,
    attn_implementation: str | None = None,
    name: str = "",
) -> Skeleton:
    """Build the model on the meta device.

    Args:
        config: config.json; with a ``quantization_config`` the linears take packed weights.
        architecture: The family's record; None: the registry's, or what the probe finds.
        quantization: ``nf4``, or a dense type.
        dtype: What is not quantised, and the arithmetic.
        attn_implementation: One of transformers' own; None: the first that the family has.
        name: Becomes the model's ``name_or_path``.

    Raises:
        PorosModelError: transformers can't build a model from the config, or builds another one
            than the record describes.
    """
    architecture = architecture or architecture_of(config, where=name or "config.json")
    check_transformers(architecture)
    attn_implementation = attn_implementation or architecture.attentions[0]
    try:
        hf_config = _hf_config(config, attn_implementation, dtype, name)
        quantizer = _quantizer(hf_config, dtype) if quantization == "nf4" else None
        model = _build(hf_config, quantizer, dtype)
    # A config may fail transformers' checks, or its arithmetic, in any of these ways; its strict
    # dataclasses raise ones of their own, which no base class joins.
    except Exception as error:
        raise PorosModelError(
            f"{architecture.hf_class} can't be built from the config "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})",
            where=f"config.json of {name}" if name else "config.json",
            remediation="restore the config.json that belongs to these weights",
        ) from error
    check_record(model, architecture, dtype)
    _fill_buffers(model)
    for module in model.modules():
        if isinstance(module, Linear4bit):
            # Otherwise one eval forward on the CPU repacks the base in place, and every gradient
            # after it is garbage while the loss still falls.
            module.support_avx512bf16_for_cpu = False
    layers = list(model.get_submodule(architecture.layers_path).children())
    return Skeleton(model, quantizer, architecture, layers, dict(model.all_tied_weights_keys))


def finish(skeleton: Skeleton) -> None:
    """What `from_pretrained` does to the model once its weights are there."""
    model = skeleton.model
    model.tie_weights()
    model.requires_grad_(False)
    model.eval()
    if skeleton.quantizer is not None:
        model.hf_quantizer = skeleton.quantizer  # type: ignore[assignment]  # stock sets it so
        skeleton.quantizer.postprocess_model(model)


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """What a checkpoint of the model holds: its state without the tied copies."""
    tied = model.all_tied_weights_keys
    return {name: t for name, t in model.state_dict().items() if name not in tied}


def _hf_config(
    config: Mapping[str, Any], attn_implementation: str, dtype: torch.dtype, name: str
) -> PretrainedConfig:
    foreign = ("attn_implementation", "_attn_implementation", "auto_map")
    own = {key: value for key, value in config.items() if not key.startswith(foreign)}
    hf_config = CONFIG_MAPPING[config["model_type"]].from_dict(own)
    hf_config._attn_implementation = attn_implementation
    hf_config.dtype = dtype
    hf_config.name_or_path = name
    return hf_config


def _quantizer(hf_config: PretrainedConfig, dtype: torch.dtype) -> HfQuantizer:
    stored = getattr(hf_config, "quantization_config", None)
    settings = stored if stored is not None else nf4_settings(dtype)
    quantizer: HfQuantizer = AutoHfQuantizer.from_config(settings, pre_quantized=stored is not None)
    hf_config.quantization_config = quantizer.quantization_config
    return quantizer


def nf4_settings(dtype: torch.dtype) -> BitsAndBytesConfig:
    """What Poros asks bitsandbytes for: NF4, double quantisation."""
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def _build(
    hf_config: PretrainedConfig, quantizer: HfQuantizer | None, dtype: torch.dtype
) -> PreTrainedModel:
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(hf_config)]
    contexts = model_class.get_init_context(dtype, quantizer is not None, False, False)
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        model: PreTrainedModel = model_class(hf_config)
        patch_output_recorders(model)
        if quantizer is not None:
            quantizer.preprocess_model(
                model=model, dtype=dtype, device_map=None, checkpoint_files=[], use_kernels=False
            )
    model.config.architectures = [model_class.__name__]
    return model


def _fill_buffers(model: PreTrainedModel) -> None:
    """Compute the buffers that no checkpoint holds, with the model's own initialiser."""
    with torch.no_grad():
        for module, owner in _with_owners(model, model):
            names = sorted(module._non_persistent_buffers_set)
            if not names:
                continue
            for parameter in module.parameters(recurse=False):
                parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # stock's own flag
            for name in names:
                buffer = module.get_buffer(name)
                blank = math.nan if buffer.is_floating_point() else 0
                setattr(module, name, torch.full_like(buffer, blank, device="cpu"))
            owner._init_weights(module)
            unfilled = [name for name in names if bool(module.get_buffer(name).isnan().any())]
            if unfilled:
                raise PorosModelError(
                    f"transformers does not compute {', '.join(unfilled)}",
                    where=type(module).__name__,
                    remediation="use a version of transformers that Poros names in its README",
                )


def _with_owners(
    module: nn.Module, owner: PreTrainedModel
) -> Iterator[tuple[nn.Module, PreTrainedModel]]:
    """Every module with the nearest model around it, whose initialiser is responsible for it."""
    owner = module if isinstance(module, PreTrainedModel) else owner
    yield module, owner
    for child in module.children():
        yield from _with_owners(child, owner)
