"""Model folders of real sizes without weights: config.json, safetensors headers, then holes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poros.weights_index import DTYPE_BYTES

Tensors = dict[str, tuple[str, tuple[int, ...]]]

QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def write_headers(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """A folder whose weights are a hole in a file: it takes no room on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    entries, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        num_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + num_bytes]}
        end += num_bytes
    header = json.dumps(entries).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return folder


def qwen_tensors(config: Mapping[str, Any], prefix: str = "model.") -> Tensors:
    """What a Qwen2 checkpoint of these sizes stores, in bfloat16."""
    hidden, mlp, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (hidden, hidden),
        "self_attn.q_proj.bias": (hidden,),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (hidden, hidden),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}embed_tokens.weight": (vocab, hidden)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"{prefix}layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes |= {f"{prefix}norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    return {name: ("BF16", shape) for name, shape in shapes.items()}
