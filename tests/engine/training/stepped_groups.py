"""Clipped steps of the same tensors by one optimizer, or by one for each group of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poros.measure.fingerprint import same_bits
from poros.streaming.block import Block
from poros.training.optimizer import make_optimizer
from tests.engine.training.tiny_run import CPU

Sizes = Sequence[tuple[int, ...]]


def stepped(
    groups: Sequence[Sizes], dtype: torch.dtype, device: torch.device = CPU, *,
    in_one_buffer: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Weights, moments and norms after two steps of one optimizer a group.

    Args:
        groups: The tensors' sizes.
        dtype: Of all of them.
        device: Where they are.
        in_one_buffer: Weights and gradients are views of buffers laid out like a block's.
    """
    generator = torch.Generator().manual_seed(4)
    sizes = [size for group in groups for size in group]

    def draw() -> list[Tensor]:
        made = [torch.randn(size, generator=generator).to(dtype).to(device) for size in sizes]
        if not in_one_buffer:
            return made
        block = Block.zeros(0, [(str(k), t) for k, t in enumerate(made)], device=CPU)
        buffer = block.host.to(device, copy=True)
        views = [place.view(buffer) for place in block.places]
        for view, tensor in zip(views, made, strict=True):
            view.copy_(tensor)
        return views

    weights = [torch.nn.Parameter(tensor) for tensor in draw()]
    supply = iter(weights)
    split = [[next(supply) for _ in group] for group in groups]
    optimizers = [make_optimizer([("", w) for w in part], weight_decay=0.01) for part in split]
    norms: list[Tensor] = []
    for _ in range(2):
        for weight, grad in zip(weights, draw(), strict=True):
            weight.grad = grad
        norms = [n for part in split for n in torch._foreach_norm([w.grad for w in part], 2.0)]
        total = torch.linalg.vector_norm(torch.stack(norms), 2.0)
        assert same_bits(total, torch.nn.utils.get_total_norm([w.grad for w in weights]))
        for part, optimizer in zip(split, optimizers, strict=True):
            optimizer.clip_and_step([("", w) for w in part], 0.5, total)
    states = [
        optimizer.state[weight]
        for part, optimizer in zip(split, optimizers, strict=True)
        for weight in part
    ]
    moments = [state[kind] for state in states for kind in ("exp_avg", "exp_avg_sq")]
    return [*(weight.detach() for weight in weights), *moments, *norms]
