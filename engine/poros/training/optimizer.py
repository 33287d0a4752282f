"""AdamW over the adapter's weights, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from poros.training.holdings import Holding, on_device

Params = Sequence[tuple[str, nn.Parameter]]

MOMENTS = ("exp_avg", "exp_avg_sq")


class AdapterAdamW(torch.optim.AdamW):
    """Stock AdamW, and what else a step and a checkpoint ask of whoever has the state.

    Here all of it is on the device and the answers are stock calls; `host_adamw` has another.
    """

    @property
    def moved_bytes(self) -> int:
        """Bytes that went over the link for it so far, both ways."""
        return 0

    def take_copy_wait_s(self) -> float:
        """Seconds that the computation stood waiting for them since the last call."""
        return 0.0

    def gradient(self, weight: nn.Parameter) -> Tensor | None:
        """The gradient that the step's backwards summed up; None: they gave none."""
        return weight.grad

    def total_norm(self, params: Params) -> Tensor:
        """The norm over all gradients, () on the device, before they are clipped."""
        grads = [weight.grad for _, weight in params if weight.grad is not None]
        return torch.nn.utils.get_total_norm(grads)

    def clip_and_step(self, params: Params, max_grad_norm: float, total_norm: Tensor) -> None:
        """Scale the gradients down to `max_grad_norm`, then step."""
        weights = [weight for _, weight in params]
        torch.nn.utils.clip_grads_with_norm_(weights, max_grad_norm, total_norm)
        self.step()

    def restore(self, weight: nn.Parameter, state: Mapping[str, Tensor]) -> None:
        """Take a weight's state from a checkpoint, by `state_dict`'s names, on the CPU."""
        self.state[weight] = {
            "step": state["step"],
            **{kind: state[kind].to(weight.device) for kind in MOMENTS},
        }

    def settle(self) -> None:
        """Return when weights, gradients and moments can be read where they lie."""

    def holdings(self, params: Params) -> list[Holding]:
        """What lies where at a step's end: weights, gradients, moments."""
        weights = [weight for _, weight in params]
        return [
            on_device("adapters", weights),
            on_device("gradients", weights),
            on_device("moments", weights, times=len(MOMENTS)),
        ]


def make_optimizer(params: Params, *, weight_decay: float) -> AdapterAdamW:
    """AdamW with torch's defaults; `train_step` sets the learning rate of each step."""
    weights = [parameter for _, parameter in params]
    return AdapterAdamW(weights, weight_decay=weight_decay, foreach=True)


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
