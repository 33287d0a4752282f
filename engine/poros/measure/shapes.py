"""Configs at the sizes of well-known models, for runs with random weights.

Such a run says that the arithmetic is exact at that shape. It says nothing about the files of a
real checkpoint of that name.
"""

from __future__ import annotations

import difflib
from typing import Any

from poros.errors import PorosConfigError

_DTYPE = {"dtype": "bfloat16"}


def _qwen2(
    hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocab: int, *, tied: bool = False
) -> dict[str, Any]:
    return _DTYPE | {
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
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
    }


def _as(model_type: str, hf_class: str, base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    config = {key: value for key, value in base.items() if key != "use_sliding_window"}
    return config | {"model_type": model_type, "architectures": [hf_class]} | changes


SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2, 151936, tied=True),
    "qwen2.5-7b": _qwen2(3584, 18944, 28, 28, 4, 152064),
    "qwen2.5-14b": _qwen2(5120, 13824, 48, 40, 8, 152064),
    "qwen2.5-32b": _qwen2(5120, 27648, 64, 40, 8, 152064),
    "qwen2.5-72b": _qwen2(8192, 29568, 80, 64, 8, 152064),
    "qwen3-8b": _as(
        "qwen3", "Qwen3ForCausalLM", _qwen2(4096, 12288, 36, 32, 8, 151936), head_dim=128
    ),
    "qwen3-32b": _as(
        "qwen3", "Qwen3ForCausalLM", _qwen2(5120, 25600, 64, 64, 8, 151936), head_dim=128
    ),
    "llama-3.1-8b": _as(
        "llama", "LlamaForCausalLM", _qwen2(4096, 14336, 32, 32, 8, 128256), rope_theta=500000.0
    ),
    "llama-3.1-70b": _as(
        "llama", "LlamaForCausalLM", _qwen2(8192, 28672, 80, 64, 8, 128256), rope_theta=500000.0
    ),
    "mistral-7b": _as(
        "mistral", "MistralForCausalLM", _qwen2(4096, 14336, 32, 32, 8, 32768), sliding_window=None
    ),
    "phi-4": _as(
        "phi3",
        "Phi3ForCausalLM",
        _qwen2(5120, 17920, 40, 40, 10, 100352),
        sliding_window=None,
        max_position_embeddings=16384,
        original_max_position_embeddings=16384,
        pad_token_id=0,
    ),
    "tiny-llama": _as(
        "llama", "LlamaForCausalLM", _qwen2(128, 256, 4, 4, 2, 512), rope_theta=10000.0
    ),
}
"""Name to config.json; ``tiny-llama`` is for trying the gate itself."""


def shape_config(name: str, *, num_layers: int | None = None) -> dict[str, Any]:
    """The config of a shape, at full depth or cut down to `num_layers`.

    Raises:
        PorosConfigError: No shape of that name.
    """
    key = name.lower()
    if key not in SHAPES:
        near = difflib.get_close_matches(key, SHAPES, n=3) or list(SHAPES)
        raise PorosConfigError(
            f"unknown shape {name!r}", where="--shape", remediation=f"one of {', '.join(near)}"
        )
    config = dict(SHAPES[key])
    if num_layers is not None:
        config["num_hidden_layers"] = num_layers
    return config
