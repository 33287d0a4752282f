"""Tiny checkpoints with random weights, written by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

CPU = torch.device("cpu")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, untied": {"model_type": "llama", "tie_word_embeddings": False},
    "llama3 rope": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "qwen2, biases": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3, untied": {"model_type": "qwen3", "tie_word_embeddings": False},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "phi3": {"model_type": "phi3", "tie_word_embeddings": False},
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """A config.json as transformers writes it."""
    values = SIZES | {"model_type": "llama"} | changes
    config = CONFIG_MAPPING[values.pop("model_type")](**values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return json.loads(model.config.to_json_string()) | {"architectures": [type(model).__name__]}


def write_model(folder: Path, *, shard_size: str = "50GB", **changes: Any) -> Path:
    """Write a checkpoint with random weights; biases and norms are random too."""
    values = SIZES | {"model_type": "llama"} | changes
    torch.manual_seed(1)
    config = CONFIG_MAPPING[values.pop("model_type")](**values)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif "embed" not in name:
                parameter.mul_(3)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def stock_4bit(folder: Path, device: torch.device = CPU) -> PreTrainedModel:
    """What stock makes of a 16-bit folder; with the one flag that the CPU needs."""
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return open_stock(folder, device, quantization_config=settings)


def open_stock(folder: Path, device: torch.device = CPU, **settings: Any) -> PreTrainedModel:
    """`from_pretrained` in bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, device_map={"": device}, **settings
    )
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    return model


def all_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Every tensor that a forward reads, quantisation states taken apart."""
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    tensors = {name: t.data.as_subclass(torch.Tensor) for name, t in named}
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            tensors |= {
                f"{name}.absmax": state.absmax,
                f"{name}.code": state.code,
                f"{name}.offset": state.offset,
                f"{name}.nested_absmax": state.state2.absmax,
                f"{name}.nested_code": state.state2.code,
            }
    return tensors


def state_facts(model: PreTrainedModel) -> dict[str, tuple[Any, ...]]:
    """What a quantisation state says beside its tensors."""
    facts = {}
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            inner = state.state2
            facts[name] = (
                state.shape, state.dtype, state.blocksize, state.quant_type, state.nested,
                inner.blocksize, inner.dtype, parameter.quant_storage, parameter.blocksize,
                parameter.compress_statistics, parameter.quant_type, parameter.bnb_quantized,
                parameter.requires_grad,
            )  # fmt: skip
    return facts
