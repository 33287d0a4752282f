"""Tiny multimodal checkpoints with random weights, written by transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.loading.text_part import TextPart, open_source
from tests.engine.loading.tiny_models import E_FORM, FAMILIES, SIZES, is_refused, randomise

_VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
}  # fmt: skip

WHOLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_5": ("qwen3_5", "qwen3_5_text", {"tie_word_embeddings": False}),
    "qwen3_5, tied": ("qwen3_5", "qwen3_5_text", {"tie_word_embeddings": True}),
    "gemma3": ("gemma3", "gemma3_text", {"tie_word_embeddings": True}),
    "gemma3, untied": ("gemma3", "gemma3_text", {"tie_word_embeddings": False}),
    "gemma4": ("gemma4", "gemma4_text", {"tie_word_embeddings": True}),
    "gemma4, E-form": ("gemma4", "gemma4_text", E_FORM | {"tie_word_embeddings": True}),
    "mistral3": ("mistral3", "mistral", {"tie_word_embeddings": False}),
    "mistral3, ministral3": ("mistral3", "ministral3", {"tie_word_embeddings": False}),
    # What transformers 5 writes unasked: the whole is tied, its text config says that it isn't.
    "mistral3, contradicting": ("mistral3", "mistral", {"tie_word_embeddings": None}),
}
"""Name: the whole's model type, its text part's, and changes to that one's sizes."""

VISIONS: dict[str, dict[str, Any]] = {
    "qwen3_5": {
        "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2,
        "out_hidden_size": 64, "num_position_embeddings": 16,
    },
    "gemma3": _VISION | {"model_type": "siglip_vision_model", "image_size": 28, "patch_size": 14},
    "gemma4": _VISION
    | {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16},
    "mistral3": _VISION
    | {"model_type": "pixtral", "head_dim": 8, "image_size": 28, "patch_size": 14},
}  # fmt: skip

RUNNABLE_WHOLES = [name for name, (_, text_type, _) in WHOLES.items() if not is_refused(text_type)]
ONE_OF_EACH = [
    name for name in ("qwen3_5", "gemma3", "gemma4, E-form", "mistral3") if name in RUNNABLE_WHOLES
]


def write_whole(folder: Path, name: str, **more: Any) -> PreTrainedModel:
    """Write a multimodal model; what was written.

    Args:
        folder: Where to.
        name: One of `WHOLES`.
        more: Further changes to the text model's config.
    """
    kind, text_type, changes = WHOLES[name]
    torch.manual_seed(1)
    text = SIZES | FAMILIES[text_type] | changes | more | {"model_type": text_type}
    outer = {}
    tied = text.pop("tie_word_embeddings")
    if tied is not None:
        text["tie_word_embeddings"] = outer["tie_word_embeddings"] = tied
    config = CONFIG_MAPPING[kind](text_config=text, vision_config=VISIONS[kind], **outer)
    whole: PreTrainedModel = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    randomise(whole)
    whole.save_pretrained(folder)
    return whole


def open_text_part(folder: Path) -> TextPart:
    """The folder's text part, which it must have."""
    source = open_source(folder)
    assert isinstance(source, TextPart)
    return source


def text_tensors(whole: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The text model's tensors inside the whole, by the text model's own names."""
    inside = {"model.language_model.": "model.", "lm_head.": "lm_head."}
    named = {
        **dict(whole.named_parameters(remove_duplicate=False)),
        **dict(whole.named_buffers(remove_duplicate=False)),
    }
    return {
        new + name.removeprefix(old): tensor.data
        for name, tensor in named.items()
        for old, new in inside.items()
        if name.startswith(old)
    }
