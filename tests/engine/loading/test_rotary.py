from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import (
    CPU,
    FAMILIES,
    LLAMA3_ROPE,
    is_refused,
    open_stock,
    write_model,
)

SLIDING, FULL = "sliding_attention", "full_attention"
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 16,
    "short_factor": [1.0 + i / 8 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

ROPES: dict[str, tuple[str, Any]] = {
    "default": ("llama", {"rope_type": "default", "rope_theta": 1e4}),
    "linear": ("llama", LINEAR),
    "llama3": ("llama", LLAMA3_ROPE),
    "dynamic": ("llama", DYNAMIC),
    "yarn": ("qwen2", YARN),
    "yarn with its own magnitudes": (
        "ministral3",
        YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1},
    ),
    "part of a head": ("glm4", {"rope_theta": 1e4, "partial_rotary_factor": 0.25}),
    "part of a head, gpt_neox": ("gpt_neox", {"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
    "three axes": (
        "qwen3_5_text",
        {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5,
         "mrope_section": [2, 1, 1], "mrope_interleaved": True},
    ),
    "longrope": ("phi3", LONGROPE),
    "dual": (
        "gemma3_text",
        {SLIDING: {"rope_type": "default", "rope_theta": 1e4}, FULL: LINEAR},
    ),
    "dual, of two head sizes": (
        "gemma4_text",
        {SLIDING: {"rope_type": "default", "rope_theta": 1e4},
         FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}},
    ),
}  # fmt: skip
RUNNABLE = [name for name, (family, _) in ROPES.items() if not is_refused(family)]


def write(folder: Path, rope: str) -> Path:
    family, parameters = ROPES[rope]
    changes = {"model_type": family, "rope_parameters": parameters} | FAMILIES[family]
    if rope == "longrope":
        changes["original_max_position_embeddings"] = 16
    return write_model(folder, **changes)


def load(folder: Path) -> BaseModel:
    base = load_base_model(
        SafetensorsSource(folder), device=CPU, quantization="bf16", emit=lambda event: None
    )
    for block in base.blocks:
        block.point_at(block.host)
    return base


def computed(model: Any) -> dict[str, Tensor]:
    """The buffers that no checkpoint holds."""
    stored = model.state_dict().keys()
    return {name: t for name, t in model.named_buffers() if name not in stored}


@pytest.mark.parametrize("rope", RUNNABLE)
def test_computed_buffers_have_the_bytes_of_from_pretrained(rope: str, tmp_path: Path) -> None:
    folder = write(tmp_path, rope)
    ours, stock = computed(load(folder).model), computed(open_stock(folder))
    assert list(ours) == list(stock)
    assert sum("inv_freq" in name for name in stock) >= 2
    assert all(same_bits(ours[name], stock[name]) for name in stock)


@pytest.mark.parametrize("rope", RUNNABLE)
def test_attributes_of_the_rotary_module_are_those_of_from_pretrained(
    rope: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, rope)

    def scalings(model: Any) -> dict[str, object]:
        return {
            f"{path}.{key}": value
            for path, module in model.named_modules()
            for key, value in vars(module).items()
            if "attention_scaling" in key or "rope_type" in key
        }

    ours = scalings(load(folder).model)
    assert ours == scalings(open_stock(folder))
    assert len(ours) >= 2


@pytest.mark.parametrize("rope", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_sequence_length_change_as_in_stock(
    rope: str, tmp_path: Path
) -> None:
    folder = write(tmp_path, rope)
    ours, stock = load(folder).model, open_stock(folder)
    seen = []
    for num_tokens in (12, 100, 30, 12):
        ids_BT = torch.arange(num_tokens).remainder(128)[None]
        with torch.no_grad():
            assert same_bits(ours(ids_BT).logits, stock(ids_BT).logits)
        a, b = computed(ours), computed(stock)
        assert all(same_bits(a[name], b[name]) for name in b)
        seen.append(b["model.rotary_emb.inv_freq"].tolist())
    assert seen[0] != seen[1]
