"""Configs of well-known models whose layers are not all alike: the text part alone."""

from __future__ import annotations

from typing import Any

_SLIDING, _FULL, _LINEAR = "sliding_attention", "full_attention", "linear_attention"


def _in_turn(often: str, seldom: str, every: int, num_layers: int) -> list[str]:
    """Each `every`-th layer is of the other kind."""
    return [often if layer % every else seldom for layer in range(1, num_layers + 1)]


_GEMMA: dict[str, Any] = {
    "dtype": "bfloat16",
    "vocab_size": 262144,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}

_GEMMA4: dict[str, Any] = _GEMMA | {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "head_dim": 256,
    "global_head_dim": 512,
    "vocab_size_per_layer_input": 262144,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "final_logit_softcapping": 30.0,
    "rope_parameters": {
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}

MIXED_SHAPES: dict[str, dict[str, Any]] = {
    "qwen3.5-27b": {
        "dtype": "bfloat16",
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "layer_types": _in_turn(_LINEAR, _FULL, 4, 64),
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attn_output_gate": True,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": 248044,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
        },
    },
    "gemma-3-27b": _GEMMA
    | {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 62,
        "layer_types": _in_turn(_SLIDING, _FULL, 6, 62),
        "sliding_window": 1024,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "query_pre_attn_scalar": 168,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            _FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            _SLIDING: {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gemma-4-31b": _GEMMA4
    | {
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 60,
        "layer_types": _in_turn(_SLIDING, _FULL, 6, 60),
        "sliding_window": 1024,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 262144,
        "use_bidirectional_attention": "vision",
    },
    "gemma-4-e4b": _GEMMA4
    | {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 42,
        "layer_types": _in_turn(_SLIDING, _FULL, 6, 42),
        "sliding_window": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "attention_k_eq_v": False,
        "num_kv_shared_layers": 18,
        "hidden_size_per_layer_input": 256,
        "max_position_embeddings": 131072,
    },
}
