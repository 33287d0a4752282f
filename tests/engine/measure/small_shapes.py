"""Shapes cut down to what a CPU computes in a second: all kinds of layers, narrow."""

from __future__ import annotations

from typing import Any

from poros.measure.shapes import shape_config

NUM_LAYERS = 8

_NARROW = {
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "hidden_size_per_layer_input": 32,
    "vocab_size": 512,
    "vocab_size_per_layer_input": 512,
    "sliding_window": 24,
    "eos_token_id": 1,
}


def small_shape(name: str, *, num_layers: int | None = NUM_LAYERS) -> dict[str, Any]:
    """A shape's config with narrow layers; what it leaves out or has at 0 stays so."""
    config = shape_config(name, num_layers=num_layers)
    changes = {key: value for key, value in _NARROW.items() if config.get(key)}
    if "mrope_section" in config.get("rope_parameters", {}):
        rope = config["rope_parameters"] | {"mrope_section": [2, 1, 1]}
        changes["rope_parameters"] = rope
    return config | changes
