"""AdamW over the adapter's weights, and the learning rate as a pure function of the step.

[Note: a step goes on where it broke off]
A tensor's bits don't depend on what else is stepped with it, so a step is made part by part, and a
part is stepped as a whole or not at all. A weight that has been stepped has no gradient any more:
if memory ran out, calling `clip_and_step` again does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from poros import failpoints
from poros.training.holdings import Holding, on_device
from poros.training.rollback import whole_or_not_at_all

Params = Sequence[tuple[str, nn.Parameter]]

MOMENTS = ("exp_avg", "exp_avg_sq")

PART_BYTES = 16 * 2**20
"""Of the weights that are stepped together, if they are on the device: enough to keep it busy.
Stock's temporaries and the copies that undo a failed step take five times as much."""


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
        """Scale the gradients down to `max_grad_norm`, then step; stepped weights lose theirs.

        A call that raised has stepped some weights and left the others as they were; the next call
        steps these.
        """
        of_all = self.param_groups
        try:
            for weights in _parts(params):
                self.param_groups = [{**of_all[0], "params": weights}]
                changing = [weight.detach() for weight in weights]
                changing += [weight.grad for weight in weights if weight.grad is not None]
                states = [self.state[weight] for weight in weights if weight in self.state]
                changing += [state[kind] for state in states for kind in MOMENTS]
                self._step_together(weights, changing, max_grad_norm, total_norm)
        finally:
            self.param_groups = of_all

    def _step_together(
        self,
        weights: Sequence[nn.Parameter],
        changing: Sequence[Tensor],
        max_grad_norm: float,
        total_norm: Tensor,
    ) -> None:
        """Clip and step the one group that there is now; `changing` has no other copy."""
        with whole_or_not_at_all(self, weights, changing):
            torch.nn.utils.clip_grads_with_norm_(weights, max_grad_norm, total_norm)
            self.step()
            failpoints.hit("train.optimizer")
        for weight in weights:
            weight.grad = None

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


def _parts(params: Params) -> Iterator[list[nn.Parameter]]:
    """The weights that have gradients, in order, some `PART_BYTES` at a time."""
    part, num_bytes = list[nn.Parameter](), 0
    for _, weight in params:
        if weight.grad is None:
            continue
        weight_bytes = weight.numel() * weight.element_size()
        if part and num_bytes + weight_bytes > PART_BYTES:
            yield part
            part, num_bytes = [], 0
        part.append(weight)
        num_bytes += weight_bytes
    if part:
        yield part
