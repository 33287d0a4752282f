"""One optimizer step, with the calls and in the order of a stock resident run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poros.data.batches import Batch
from poros.errors import PorosNonFiniteError
from poros.training.optimizer import MOMENTS, AdapterAdamW, Params

Observe = Callable[[str, Tensor], None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did; the loss is the mean over the step's label tokens."""

    loss: float
    grad_norm: float
    num_tokens: int
    num_label_tokens: int


def train_step(
    model: nn.Module,
    params: Params,
    optimizer: AdapterAdamW,
    micro_batches: Sequence[Batch],
    *,
    device: torch.device,
    learning_rate: float,
    max_grad_norm: float,
    autocast_dtype: torch.dtype | None = None,
    observe: Observe | None = None,
    between: Callable[[], None] = lambda: None,
) -> StepResult:
    """Forward and backward each micro-batch, clip, step.

    Args:
        model: In training mode.
        params: What is trained, by name.
        optimizer: Over those.
        micro_batches: Of this step; each has label tokens.
        device: Where the model computes.
        learning_rate: Of this step.
        max_grad_norm: Gradients of a larger norm are scaled down to it.
        autocast_dtype: Run the forwards under autocast in this type.
        observe: Told of every loss, gradient, weight and moment, for the parity gate.
        between: Called before each micro-batch; may raise to end the step.

    Raises:
        PorosNonFiniteError: Before the optimizer's step; weights and moments are as they were.
    """
    note = observe or _ignore
    num_label_tokens = sum(batch.num_label_tokens for batch in micro_batches)
    losses = []
    for index, batch in enumerate(micro_batches):
        between()
        assert batch.num_label_tokens, f"nothing to learn in samples {batch.sample_ids}"
        loss = _forward(model, batch, device, num_label_tokens, autocast_dtype)
        loss.backward()
        losses.append(loss.detach())
        note(f"loss.{index}", losses[-1])
    grad_norm = _total_norm(params, optimizer, micro_batches, losses, observe)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.clip_and_step(params, max_grad_norm, grad_norm)
    if observe is not None:
        _note_state(params, optimizer, observe)
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        loss=sum(torch.stack(losses).tolist()),
        grad_norm=grad_norm.item(),
        num_tokens=sum(batch.num_tokens for batch in micro_batches),
        num_label_tokens=num_label_tokens,
    )


def _forward(
    model: nn.Module,
    batch: Batch,
    device: torch.device,
    num_items: int,
    autocast_dtype: torch.dtype | None,
) -> Tensor:
    inputs = batch.model_inputs(device)
    labels_BT = batch.labels_BT.to(device)
    enabled = autocast_dtype is not None
    with torch.autocast(device.type, autocast_dtype or torch.bfloat16, enabled=enabled):
        loss: Tensor = model(**inputs, labels=labels_BT, num_items_in_batch=num_items).loss
    return loss


def _total_norm(
    params: Params,
    optimizer: AdapterAdamW,
    micro_batches: Sequence[Batch],
    losses: Sequence[Tensor],
    observe: Observe | None,
) -> Tensor:
    """The norm before the clip; `clip_grad_norm_` in two halves, with a look between them."""
    grad_norm = optimizer.total_norm(params)
    if observe is not None:
        optimizer.settle()
        for name, parameter in params:
            gradient = optimizer.gradient(parameter)
            if gradient is not None:
                observe(f"grad.{name}", gradient)
        observe("grad_norm", grad_norm)
    # The first wait for the device in this step.
    values = torch.stack([*losses, grad_norm.to(losses[0].dtype)]).tolist()
    if not all(map(math.isfinite, values)):
        raise _non_finite(params, optimizer, micro_batches, values)
    return grad_norm


def _non_finite(
    params: Params,
    optimizer: AdapterAdamW,
    micro_batches: Sequence[Batch],
    values: Sequence[float],
) -> PorosNonFiniteError:
    for index, (batch, loss) in enumerate(zip(micro_batches, values, strict=False)):
        if not math.isfinite(loss):
            name, value, samples = f"the loss of micro-batch {index}", loss, batch.sample_ids
            break
    else:
        optimizer.settle()
        grads = ((name, optimizer.gradient(weight)) for name, weight in params)
        bad = (name for name, grad in grads if grad is not None and not grad.isfinite().all())
        name, value = f"the gradient of {next(bad, 'all weights together')}", values[-1]
        samples = tuple(i for batch in micro_batches for i in batch.sample_ids)
    return PorosNonFiniteError(
        f"{name} is not finite ({value})",
        where=f"samples {', '.join(map(str, samples))}",
        remediation="lower learning_rate or look at these samples; the last checkpoint is intact",
    )


def _note_state(params: Params, optimizer: AdapterAdamW, note: Observe) -> None:
    optimizer.settle()
    for name, parameter in params:
        note(f"adapter.{name}", parameter.detach())
        for kind in MOMENTS:
            note(f"{kind}.{name}", optimizer.state[parameter][kind])


def _ignore(name: str, tensor: Tensor) -> None:
    """Nobody is watching."""
