"""Tiny random models of every family, written by transformers, for `poros parity --family`.

All kinds of layers of a family, sizes unlike one another, and every multiplier, softcap and bias
away from the value at which it does nothing. A family that looks like llama has no line here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_registry import architectures, find_architecture
from poros.arch_table import ArchSpec
from poros.atomic import atomic_dir
from poros.errors import PorosConfigError

WINDOW = 20
"""Tokens of a sliding window: packed rows fit into it, other sequences do not."""

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 7,  # three blocks of up to three layers: more than two slots
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,  # four heads of it are not the hidden size
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

_SLIDING, _FULL, _LINEAR = "sliding_attention", "full_attention", "linear_attention"
_FIVE_TO_ONE = [*[_SLIDING] * 5, _FULL, _SLIDING]
_IN_TURN = [_SLIDING, _FULL] * 3 + [_SLIDING]
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
_GEMMA4: dict[str, Any] = {
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _SLIDING, _FULL],
    "sliding_window": WINDOW, "global_head_dim": 32, "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}  # fmt: skip
_MRO = {
    "rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5,
    "mrope_section": [2, 2, 2], "mrope_interleaved": True,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """One tiny model of a family.

    Attributes:
        family: The name for ``--family``.
        model_type: The text model's.
        wrapper: The multimodal model type whose text part it is; empty: a text checkpoint.
        variant: Tells apart models of one family.
        changes: To the common `SIZES`.
        more_targets: Linears beside the family's own that get adapters.
    """

    family: str
    model_type: str
    wrapper: str = ""
    variant: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    more_targets: tuple[str, ...] = ()

    @property
    def spec(self) -> ArchSpec:
        """The family's record."""
        return find_architecture(self.model_type)

    @property
    def config(self) -> dict[str, Any]:
        """The text model's config values."""
        return SIZES | self.changes


MODELS: tuple[TinyModel, ...] = (
    TinyModel(
        family="llama", model_type="llama",
        changes={"rope_parameters": _LLAMA3, "tie_word_embeddings": True},
    ),
    TinyModel(
        family="qwen2", model_type="qwen2",
        changes={
            "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 4,
            "tie_word_embeddings": True, "rope_parameters": _YARN,
        },
    ),
    TinyModel(
        family="qwen3_5", model_type="qwen3_5_text", wrapper="qwen3_5",
        changes={
            "layer_types": [_LINEAR, _LINEAR, _LINEAR, _FULL, _LINEAR, _LINEAR, _FULL],
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 24, "rope_parameters": _MRO,
        },
    ),
    TinyModel(
        family="mistral", model_type="mistral", changes={"sliding_window": WINDOW},
    ),
    TinyModel(
        family="ministral3", model_type="ministral3", wrapper="mistral3",
        changes={"rope_parameters": _YARN | {"llama_4_scaling_beta": 0.1}},
    ),
    TinyModel(
        family="phi3", model_type="phi3",
        changes={
            "sliding_window": WINDOW, "partial_rotary_factor": 0.75, "attention_dropout": 0.1,
            "resid_pdrop": 0.1, "original_max_position_embeddings": 64,
        },
    ),
    TinyModel(
        family="gemma2", model_type="gemma2",
        changes={
            "layer_types": _IN_TURN, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
        },
    ),
    TinyModel(
        family="gemma3", model_type="gemma3_text", wrapper="gemma3",
        changes={
            "layer_types": _FIVE_TO_ONE, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
        },
    ),
    TinyModel(
        family="gemma3_text", model_type="gemma3_text",
        changes={
            "layer_types": _FIVE_TO_ONE, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
            "rope_parameters": {
                _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
                _FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            },
        },
    ),
    TinyModel(
        family="gemma4", model_type="gemma4_text", wrapper="gemma4",
        changes=_GEMMA4 | {
            "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 24,
            "vocab_size_per_layer_input": 160, "use_double_wide_mlp": True,
            "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL],
        },
        more_targets=("per_layer_model_projection",),
    ),
    TinyModel(
        family="gemma4", model_type="gemma4_text", wrapper="gemma4", variant="31b",
        changes=_GEMMA4 | {
            "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        },
    ),
    TinyModel(
        family="olmo3", model_type="olmo3",
        changes={"layer_types": _IN_TURN, "sliding_window": WINDOW},
    ),
    TinyModel(
        family="granite", model_type="granite",
        changes={
            "embedding_multiplier": 6.0, "logits_scaling": 4.0, "residual_multiplier": 0.5,
            "attention_multiplier": 0.1, "attention_bias": True, "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    TinyModel(
        family="smollm3", model_type="smollm3",
        changes={"no_rope_layers": [1, 1, 1, 0, 1, 1, 1], "tie_word_embeddings": True},
    ),
    TinyModel(
        family="glm4", model_type="glm4",
        changes={"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    TinyModel(
        family="cohere2", model_type="cohere2",
        changes={"layer_types": _IN_TURN, "sliding_window": WINDOW, "logit_scale": 0.25},
    ),
    TinyModel(
        family="starcoder2", model_type="starcoder2",
        changes={
            "sliding_window": WINDOW, "use_bias": True, "attention_dropout": 0.1,
            "residual_dropout": 0.1, "embedding_dropout": 0.1,
        },
    ),
    TinyModel(
        family="gpt_neox", model_type="gpt_neox",
        changes={
            "hidden_size": 96, "hidden_dropout": 0.1, "attention_dropout": 0.1,
            "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
        },
    ),
)  # fmt: skip

_WRAPPED = {"qwen3_5": "qwen3_5_text", "gemma3": "gemma3_text", "gemma4": "gemma4_text"}
"""Families of multimodal checkpoints, under their own names, and their text part's type."""

_VISION: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2,
        "out_hidden_size": 64, "num_position_embeddings": 16,
    },
    "gemma3": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 56, "patch_size": 14,
    },
    "gemma4": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "position_embedding_size": 16,
    },
    "mistral3": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14,
    },
}  # fmt: skip
_VISION_TYPES = {"gemma3": "siglip_vision_model", "mistral3": "pixtral"}


def family_names() -> list[str]:
    """Every name for ``--family``; multimodal checkpoints by the name of the whole."""
    only_wrapped = set(_WRAPPED.values()) - {"gemma3_text"}
    return [*_WRAPPED, *(name for name in architectures() if name not in only_wrapped)]


def families_of(request: str) -> list[TinyModel]:
    """The models of some families, their names with commas between them, or of ``all``."""
    names = family_names() if request == "all" else request.split(",")
    return [model for name in names for model in tiny_models(name)]


def tiny_models(family: str) -> list[TinyModel]:
    """The family's models; a family without a line looks like llama.

    Raises:
        PorosArchNotValidatedError: The table has no such family.
    """
    own = [model for model in MODELS if model.family == family]
    return own or [TinyModel(family=family, model_type=find_architecture(family).model_type)]


def refuse_without_side_tensors(request: str) -> None:
    """Refuse mutants of what a family has not.

    Raises:
        PorosConfigError: Its layers take and give hidden states alone.
    """
    specs = [model.spec for model in families_of(request)]
    if not any(spec.per_layer_input or spec.shared_states for spec in specs):
        raise PorosConfigError(
            f"no layer of {request} takes or gives more than hidden states, so no mutant cuts any",
            where="--mutants",
            remediation="--demo --mutants, or a family with side tensors, as gemma4",
        )


def too_old(model: TinyModel) -> bool:
    """Whether this version of transformers can't compute the family as Poros needs it."""
    least = model.spec.min_transformers
    return bool(least) and _numbers(transformers.__version__) < _numbers(least)


def write_model(model: TinyModel, folder: Path) -> tuple[Path, Path]:
    """Write the model; the folder a user would have, and the one that stock opens as text model.

    Both are the same one unless the checkpoint is multimodal.
    """
    text_folder = folder / "text"
    whole_folder = folder / "whole" if model.wrapper else text_folder
    if not text_folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(1)
        text, whole = _build(model)
        with atomic_dir(whole_folder) as work:
            whole.save_pretrained(work)
        if text is not whole:
            with atomic_dir(text_folder) as work:
                text.save_pretrained(work)
    return whole_folder, text_folder


def _build(model: TinyModel) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The text model and the model that holds it, with the same tensors in both."""
    if not model.wrapper:
        text = _text_model(CONFIG_MAPPING[model.model_type](**model.config))
        _randomise(text)
        return text, text
    vision = dict(_VISION[model.wrapper])
    if model.wrapper in _VISION_TYPES:
        vision["model_type"] = _VISION_TYPES[model.wrapper]
    values = {"model_type": model.model_type} | model.config
    tied = values.get("tie_word_embeddings", model.wrapper.startswith("gemma"))
    whole_config: Any = CONFIG_MAPPING[model.wrapper]
    config = whole_config(text_config=values, vision_config=vision, tie_word_embeddings=tied)
    whole = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    _randomise(whole)
    text = _text_model(whole.config.text_config)
    parts: tuple[tuple[nn.Module, nn.Module], ...] = (
        (text.model, whole.model.language_model),
        (text.lm_head, whole.lm_head),
    )
    for mine, other in parts:
        mine.load_state_dict(other.state_dict())
    return text, whole


def _text_model(config: Any) -> Any:
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return model_class._from_config(config, dtype=torch.bfloat16)


def _randomise(model: PreTrainedModel) -> None:
    """Biases, norms and scalars get random values: at zero or one, a lost one would not show."""
    with torch.no_grad():
        named = dict(model.named_parameters()) | dict(model.named_buffers())
        for name in sorted(named.keys() & model.state_dict().keys()):
            tensor = named[name]
            if tensor.dim() <= 1 and tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * 0.1)
            elif tensor.is_floating_point() and "embed" not in name:
                tensor.mul_(3)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
