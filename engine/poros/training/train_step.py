"""One optimizer step, with the calls and in the order of a stock resident run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from poros import failpoints
from poros.data.batches import Batch
from poros.errors import PorosNonFiniteError
from poros.streaming.shortage import MakeRoom, until_it_fits
from poros.training.determinism import rng_state, set_rng_state
from poros.training.optimizer import MOMENTS, AdapterAdamW, Params

T = TypeVar("T")

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
    make_room: MakeRoom | None = None,
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
        make_room: Called when the device's memory ran out; then the step is made again, with the
            same bits. None: that is an error of this function.

    Raises:
        PorosNonFiniteError: Before the optimizer's step; weights and moments are as they were.
        PorosOOMError: From `make_room`.
    """
    step = _Step(
        model, params, optimizer, micro_batches, device, max_grad_norm, autocast_dtype,
        observe, between,
    )  # fmt: skip
    losses, grad_norm = _made(step, step.sum_gradients, make_room, step.undo_gradients)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    # What is stepped stays so: memory that runs out here is made for the rest.
    _made(step, lambda: step.apply(grad_norm), make_room, lambda: None)
    optimizer.zero_grad(set_to_none=True)
    return StepResult(
        # One by one: nothing may ask for memory here, where no smaller plan could help.
        loss=sum(loss.item() for loss in losses),
        grad_norm=grad_norm.item(),
        num_tokens=sum(batch.num_tokens for batch in micro_batches),
        num_label_tokens=sum(batch.num_label_tokens for batch in micro_batches),
    )


class _Step:
    """What one step is made from, and how to undo the half of it that can't go on."""

    def __init__(
        self,
        model: nn.Module,
        params: Params,
        optimizer: AdapterAdamW,
        micro_batches: Sequence[Batch],
        device: torch.device,
        max_grad_norm: float,
        autocast_dtype: torch.dtype | None,
        observe: Observe | None,
        between: Callable[[], None],
    ) -> None:
        self.params, self.optimizer, self.device = params, optimizer, device
        self._model, self._micro_batches = model, micro_batches
        self._max_grad_norm, self._autocast_dtype = max_grad_norm, autocast_dtype
        self._observe, self._between = observe, between
        self._random = rng_state(device)
        self.phase = "forward"

    def sum_gradients(self) -> tuple[list[Tensor], Tensor]:
        """Forward and backward; the losses, and the norm of all gradients."""
        note = self._observe or _ignore
        num_label_tokens = sum(batch.num_label_tokens for batch in self._micro_batches)
        losses = []
        for index, batch in enumerate(self._micro_batches):
            self._between()
            assert batch.num_label_tokens, f"nothing to learn in samples {batch.sample_ids}"
            self.phase = "forward"
            failpoints.hit("train.forward")
            loss = loss_of(self._model, batch, self.device, num_label_tokens, self._autocast_dtype)
            self.phase = "backward"
            failpoints.hit("train.backward")
            loss.backward()
            losses.append(loss.detach())
            note(f"loss.{index}", losses[-1])
        self.phase = "norm"
        failpoints.hit("train.norm")
        grad_norm = _total_norm(
            self.params, self.optimizer, self._micro_batches, losses, self._observe
        )
        return losses, grad_norm

    def undo_gradients(self) -> None:
        """Have gradients and random states as they were before the step."""
        self.optimizer.zero_grad(set_to_none=True)
        set_rng_state(self._random, self.device)

    def apply(self, grad_norm: Tensor) -> None:
        """Clip and step, or do the rest of it."""
        self.phase = "step"
        self.optimizer.clip_and_step(self.params, self._max_grad_norm, grad_norm)
        if self._observe is not None:
            _note_state(self.params, self.optimizer, self._observe)


def _made(
    step: _Step, attempt: Callable[[], T], make_room: MakeRoom | None, undo: Callable[[], None]
) -> T:
    if make_room is None:
        return attempt()
    return until_it_fits(
        attempt, phase=lambda: step.phase, device=step.device, make_room=make_room, undo=undo
    )


def loss_of(
    model: nn.Module,
    batch: Batch,
    device: torch.device,
    num_items: int,
    autocast_dtype: torch.dtype | None,
) -> Tensor:
    """A micro-batch's loss, its labels' mean over `num_items` of the whole step."""
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
        remediation="lower learning_rate or look at these samples",
    )


def _note_state(params: Params, optimizer: AdapterAdamW, note: Observe) -> None:
    optimizer.settle()
    for name, parameter in params:
        note(f"adapter.{name}", parameter.detach())
        for kind in MOMENTS:
            note(f"{kind}.{name}", optimizer.state[parameter][kind])


def _ignore(name: str, tensor: Tensor) -> None:
    """Nobody is watching."""
