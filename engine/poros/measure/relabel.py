"""A llama model's folder under the names of its kin: the same weights as another family.

mistral has a sliding window (none here), phi3 one matrix for q, k, v and one for gate and up: the
same logits. qwen2 has biases on q, k and v, small random ones here: with zeros, a bias that is
lost or another layer's would change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from poros.atomic import atomic_dir

Weights = dict[str, Tensor]

BIAS_SIZE = 0.02

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mistral": "MistralForCausalLM",
    "phi3": "Phi3ForCausalLM",
}


def relabel(folder: Path, model_type: str, destination: Path) -> Path:
    """Write the llama model of `folder` as a `model_type` model; returns `destination`.

    Args:
        folder: A llama model: config.json and model.safetensors.
        model_type: llama (a plain copy), qwen2, mistral or phi3.
        destination: Written whole, or left alone if it is there already.
    """
    if destination.is_dir():
        return destination
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights: Weights = {}
    for shard in sorted(folder.glob("*.safetensors")):
        weights |= load_file(shard)
    config, weights = relabelled(config, weights, model_type)
    destination.parent.mkdir(parents=True, exist_ok=True)
    with atomic_dir(destination) as work:
        text = json.dumps(config, indent=1) + "\n"
        (work / "config.json").write_text(text, encoding="utf-8")
        save_file(weights, work / "model.safetensors", metadata={"format": "pt"})
    return destination


def relabelled(
    config: dict[str, Any], weights: Weights, model_type: str
) -> tuple[dict[str, Any], Weights]:
    """The config and the tensors of a llama model in another family's terms."""
    config = dict(config)
    config["model_type"] = model_type
    config["architectures"] = [_CLASSES[model_type]]
    return _RELABEL[model_type](config, dict(weights))


def _as_mistral(config: dict[str, Any], weights: Weights) -> tuple[dict[str, Any], Weights]:
    config["sliding_window"] = None
    return config, weights


def _as_qwen2(config: dict[str, Any], weights: Weights) -> tuple[dict[str, Any], Weights]:
    config["use_sliding_window"] = False
    generator = torch.Generator().manual_seed(0)
    for name in sorted(weights):
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            bias = torch.randn(weights[name].shape[0], generator=generator) * BIAS_SIZE
            weights[name.replace(".weight", ".bias")] = bias.to(weights[name].dtype)
    return config, weights


def _as_phi3(config: dict[str, Any], weights: Weights) -> tuple[dict[str, Any], Weights]:
    config["sliding_window"] = None
    config["original_max_position_embeddings"] = config["max_position_embeddings"]
    config.setdefault("pad_token_id", config.get("eos_token_id", 0))
    for name in list(weights):
        if name.endswith("q_proj.weight"):
            parts = [name.replace("q_proj", part) for part in ("q_proj", "k_proj", "v_proj")]
            weights[name.replace("q_proj", "qkv_proj")] = _joined(weights, parts)
        elif name.endswith("gate_proj.weight"):
            parts = [name, name.replace("gate_proj", "up_proj")]
            weights[name.replace("gate_proj", "gate_up_proj")] = _joined(weights, parts)
    return config, weights


def _joined(weights: Weights, names: list[str]) -> Tensor:
    return torch.cat([weights.pop(name) for name in names])


_RELABEL: dict[str, Callable[[dict[str, Any], Weights], tuple[dict[str, Any], Weights]]] = {
    "llama": lambda config, weights: (config, weights),
    "mistral": _as_mistral,
    "qwen2": _as_qwen2,
    "phi3": _as_phi3,
}
