"""AdamW over the adapter's weights, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

Params = Sequence[tuple[str, nn.Parameter]]


def make_optimizer(params: Params, *, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with torch's defaults; `train_step` sets the learning rate of each step."""
    weights = [parameter for _, parameter in params]
    return torch.optim.AdamW(weights, weight_decay=weight_decay, foreach=True)


def learning_rate_at(
    step: int, *, base: float, warmup_steps: int, total_steps: int, schedule: str
) -> float:
    """The learning rate of a step, counted from 1.

    It rises to ``base`` at step ``warmup_steps``; then it stays (``constant``) or falls, by a
    straight line (``linear``) or half a cosine (``cosine``), to reach zero after the last step.
    """
    if step <= warmup_steps:
        return base * step / warmup_steps
    done = (step - 1 - warmup_steps) / max(total_steps - warmup_steps, 1)
    if schedule == "cosine":
        return base * 0.5 * (1 + math.cos(math.pi * done))
    if schedule == "linear":
        return base * (1 - done)
    assert schedule == "constant", schedule
    return base
