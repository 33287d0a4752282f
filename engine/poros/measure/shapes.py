"""Configs at the sizes of well-known models, for runs with random weights.

Such a run says that the arithmetic is exact at that shape. It says nothing about the files of a
real checkpoint of that name.
"""

from __future__ import annotations

import difflib
from typing import Any

from poros.errors import PorosConfigError
from poros.measure.mixed_shapes import MIXED_SHAPES


def _alike(
    hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocab: int, **more: Any
) -> dict[str, Any]:
    """A model whose layers are all alike; qwen2's, unless `more` says otherwise."""
    return {
        "dtype": "bfloat16",
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    } | more


_QWEN2 = {"use_sliding_window": False}
_QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 128}
_LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
_LLAMA3 = _LLAMA | {
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_MISTRAL = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
}
_PHI4 = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "max_position_embeddings": 16384,
    "original_max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 250000.0,
    "sliding_window": None,
    "pad_token_id": 0,
}

SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _alike(896, 4864, 24, 14, 2, 151936, **_QWEN2 | {"tie_word_embeddings": True}),
    "qwen2.5-7b": _alike(3584, 18944, 28, 28, 4, 152064, **_QWEN2),
    "qwen2.5-14b": _alike(5120, 13824, 48, 40, 8, 152064, **_QWEN2),
    "qwen2.5-32b": _alike(5120, 27648, 64, 40, 8, 152064, **_QWEN2),
    "qwen2.5-72b": _alike(8192, 29568, 80, 64, 8, 152064, **_QWEN2),
    "qwen3-8b": _alike(4096, 12288, 36, 32, 8, 151936, **_QWEN3),
    "qwen3-32b": _alike(5120, 25600, 64, 64, 8, 151936, **_QWEN3),
    "llama-3.1-8b": _alike(4096, 14336, 32, 32, 8, 128256, **_LLAMA3),
    "llama-3.1-70b": _alike(8192, 28672, 80, 64, 8, 128256, **_LLAMA3),
    "mistral-7b": _alike(4096, 14336, 32, 32, 8, 32768, **_MISTRAL),
    "phi-4": _alike(5120, 17920, 40, 40, 10, 100352, **_PHI4),
    "tiny-llama": _alike(128, 256, 4, 4, 2, 512, **_LLAMA | {"rope_theta": 10000.0}),
} | MIXED_SHAPES
"""Name to config.json; ``tiny-llama`` is for trying the gate itself."""


def shape_config(name: str, *, num_layers: int | None = None) -> dict[str, Any]:
    """The config of a shape, at full depth or with another number of layers.

    Raises:
        PorosConfigError: No shape of that name, or it has no layers like the ones asked for.
    """
    key = name.lower()
    if key not in SHAPES:
        near = difflib.get_close_matches(key, SHAPES, n=3) or list(SHAPES)
        raise PorosConfigError(
            f"unknown shape {name!r}", where="--shape", remediation=f"one of {', '.join(near)}"
        )
    config = dict(SHAPES[key])
    if num_layers is None:
        return config
    kinds = config.get("layer_types")
    if kinds is not None:
        if num_layers > len(kinds):
            raise PorosConfigError(
                f"{name} has {len(kinds)} layers of several kinds, not {num_layers}",
                where="--num-layers",
                remediation=f"ask for {len(kinds)} layers or fewer",
            )
        # The last ones: some families insist on the kind of the last layer.
        config["layer_types"] = kinds[-num_layers:]
        if config.get("num_kv_shared_layers"):
            config["num_kv_shared_layers"] = _num_shared(config, num_layers)
    config["num_hidden_layers"] = num_layers
    return config


def _num_shared(config: dict[str, Any], num_layers: int) -> int:
    """As large a part as before, but every kind has a layer that keys and values come from."""
    kinds: list[str] = config["layer_types"]
    needed = 1 + max(kinds.index(kind) for kind in set(kinds))
    part: int = num_layers * config["num_kv_shared_layers"] // config["num_hidden_layers"]
    return min(part, num_layers - needed)
