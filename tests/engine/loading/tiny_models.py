"""Tiny checkpoints with random weights, written by transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_registry import find_architecture

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

_SLIDING, _FULL, _LINEAR = "sliding_attention", "full_attention", "linear_attention"
_WINDOWS = {"sliding_window": 8, "layer_types": [_SLIDING, _SLIDING, _FULL]}

# What a family's models need beside `SIZES`; one that looks like llama has an empty line.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": None},
    "phi3": {"eos_token_id": 1, "bos_token_id": 1},
    "qwen3_5_text": {
        "num_hidden_layers": 4,
        "layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
    },
    "gemma2": _WINDOWS | {"final_logit_softcapping": 3.0},
    "gemma3_text": _WINDOWS | {"final_logit_softcapping": 3.0},
    "gemma4_text": _WINDOWS
    | {
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "global_head_dim": 32,
        "final_logit_softcapping": 3.0,
        "hidden_size_per_layer_input": 0,
    },
    "ministral3": {},
    "olmo2": {},
    "olmo3": _WINDOWS,
    "granite": {"logits_scaling": 4.0, "attention_bias": True, "mlp_bias": True},
    "smollm3": {"no_rope_layers": [1, 1, 0]},
    "glm4": {"attention_bias": True},
    "cohere2": _WINDOWS | {"logit_scale": 0.25},
    "starcoder2": {"use_bias": True},
    "gpt_neox": {},
}

LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
E_FORM: dict[str, Any] = FAMILIES["gemma4_text"] | {
    "num_hidden_layers": 6,
    "layer_types": [_SLIDING, _SLIDING, _FULL] * 2,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
    "use_double_wide_mlp": True,
}
"""Gemma 4 with per-layer inputs, its last three layers sharing keys and values."""


def _both_heads(family: str, changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    common = {"model_type": family} | changes
    return {
        f"{family}, tied": common | {"tie_word_embeddings": True},
        f"{family}, untied": common | {"tie_word_embeddings": False},
    }


VARIANTS: dict[str, dict[str, Any]] = {
    **{k: v for family, c in FAMILIES.items() for k, v in _both_heads(family, c).items()},
    "gemma4_text, E-form": {"model_type": "gemma4_text"} | E_FORM,
    "llama3 rope": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE},
}


# Each is loaded in a way of its own: biases, layers unlike one another, resident linears, names.
_UNLIKE = (
    "llama, tied", "qwen2, untied", "qwen3_5_text, untied", "gemma4_text, E-form",
    "gpt_neox, untied",
)  # fmt: skip


def is_refused(model_type: str) -> bool:
    """Whether this transformers is older than the family's record asks for."""
    least = find_architecture(model_type).min_transformers
    here = [int(part) for part in transformers.__version__.split(".")[:2]]
    return bool(least) and here < [int(part) for part in least.split(".")]


RUNNABLE = [name for name, values in VARIANTS.items() if not is_refused(values["model_type"])]
KINDS = [name for name in RUNNABLE if name in _UNLIKE]


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
    randomise(model)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def randomise(model: PreTrainedModel) -> None:
    """Make biases, norms and stored buffers random: at zero or one, a lost one would not show."""
    stored = model.state_dict().keys()
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name in sorted(named.keys() & stored):
            if named[name].dim() == 1:
                named[name].add_(torch.randn_like(named[name]) * 0.1)
            elif "embed" not in name:
                named[name].mul_(3)


def stock_4bit(folder: Path, device: torch.device = CPU, **more: Any) -> PreTrainedModel:
    """What stock makes of a 16-bit folder; with the one flag that the CPU needs."""
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    return open_stock(folder, device, quantization_config=settings, **more)


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
