"""What a step cannot be faster than: its bytes over the link, its multiplications on the device.

Link floor: bytes copied a step over the rate at which a pinned buffer reaches the device, measured
just now. Arithmetic floor: matrix multiplications of one step over the rate at which the device
multiplies bfloat16 matrices of the model's own widths, measured just now. A streamed layer is
multiplied three times: forward, recompute, and the gradient of its input (2 operations a weight and
token each); the head twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from poros.loading.base_model import BaseModel
from poros.training.rates import link_rate, multiply_rate

_PASSES_LAYER = 3
_PASSES_HEAD = 2


def floors(
    base: BaseModel, *, device: torch.device, copied_bytes_per_step: float, tokens_per_step: int
) -> dict[str, Any]:
    """Both floors of one step and what they were computed from; empty on the CPU."""
    if device.type != "cuda":
        return {}
    link_bytes_per_s = link_rate(device)
    layer_weights = sum(_num_weights(layer) for layer in base.layers)
    head = base.model.get_output_embeddings()
    head_weights = head.weight.numel() if isinstance(head, nn.Linear) else 0
    num_products = layer_weights * _PASSES_LAYER + head_weights * _PASSES_HEAD
    operations = 2.0 * tokens_per_step * num_products
    config = base.model.config.get_text_config()
    rate = multiply_rate(device, tokens_per_step, config.hidden_size, config.intermediate_size)
    return {
        "copied_bytes_per_step": copied_bytes_per_step,
        "link_bytes_per_s": link_bytes_per_s,
        "link_floor_s": copied_bytes_per_step / link_bytes_per_s,
        "operations_per_step": operations,
        "operations_per_s": rate,
        "arithmetic_floor_s": operations / rate,
    }


def _num_weights(layer: nn.Module) -> int:
    """Weights of a layer's linears, adapters left out."""
    total = 0
    for module in layer.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is not None:
            total += state.shape[0] * state.shape[1]
    return total
