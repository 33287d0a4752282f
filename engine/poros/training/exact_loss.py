"""The loss from the last hidden states in little memory, with the bits of the whole logits' loss.

R rows (batch x tokens), V vocabulary, D model width, C rows of a chunk.

[Note: what is cut, and what is not]
Only what a row does by itself is done chunk by chunk: the family's scaling of its logits, the cast
to float, the log-softmax, and the gradients of these. The two products with the head's weight keep
their whole shapes, since a slice of the vocabulary or of the rows is another kernel or another
order of additions. The sum over rows is stock's `nll_loss` over what it would pick, one column
wide: the same number of rows, hence the same tree.

[Note: a chunk begins where a wide row would]
Kernels for rows read a few elements one by one up to the next 16 bytes, so a row's sum depends on
its address. A chunk begins at a multiple of 16 rows; its rows lie as they would in the whole.

[Note: memory at the peak]
Head's weight + R*V in the logits' type (the logits, whose gradient takes their place) + about
4*C*V*4 bytes (three float buffers; scaled logits and their graph beside them). Stock holds
R*V*(2 + 4 + 4 + 4) bytes: logits, their floats, log-softmax, gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_BYTES = 32 * 2**20
"""Of a chunk's floats: enough to keep a device busy, little beside any head."""

ROW_QUANTUM = 16

LogitOp = Callable[[Tensor], Tensor]
"""What a family does to its logits, element by element."""

SUM, MEAN = 2, 1
"""What `nll_loss` calls them."""

_nll_forward = torch.ops.aten.nll_loss_forward
_nll_backward = torch.ops.aten.nll_loss_backward
_log_softmax_backward = torch.ops.aten._log_softmax_backward_data


class Stay(Protocol):
    """The head's presence on the device."""

    def end(self) -> None:
        """Say that it is not needed any more."""


@dataclass(frozen=True)
class LossCall:
    """A loss without its hidden states.

    Attributes:
        head: The model's own head; its weight is there during a visit.
        visit: Brings the weight.
        ops: What the family does to the logits, in order.
        target_R: The label of each row.
        reduction: `SUM` or `MEAN`.
        ignore_index: The label of a row that counts for nothing.
        num_chunk_rows: Rows of a chunk; None: by `CHUNK_BYTES`.
    """

    head: Callable[[Tensor], Tensor]
    visit: Callable[[], Stay]
    ops: tuple[LogitOp, ...]
    target_R: Tensor
    reduction: int
    ignore_index: int = -100
    num_chunk_rows: int | None = None

    def chunks(self, logits_RV: Tensor) -> Iterator[slice]:
        """The rows of each chunk."""
        num_rows, num_words = logits_RV.shape
        return row_chunks(num_rows, self.num_chunk_rows or fitting_rows(num_words))


def exact_loss(hidden_BTD: Tensor, call: LossCall) -> Tensor:
    """The reduced loss, float and without dimensions, as `cross_entropy` of the logits gives it.

    Its graph keeps the head's visit until its backward, which can be made once.
    """
    if torch.is_grad_enabled() and hidden_BTD.requires_grad:
        loss: Tensor = _ExactLoss.apply(hidden_BTD, call)  # type: ignore[no-untyped-call]  # torch's
        return loss
    stay = call.visit()
    try:
        logits_RV = _rows(call.head(hidden_BTD).detach())
        return _reduce(logits_RV, call)[0]
    finally:
        stay.end()


def fitting_rows(num_words: int) -> int:
    """Rows of a chunk of about `CHUNK_BYTES` floats, a multiple of `ROW_QUANTUM`."""
    return max(CHUNK_BYTES // (4 * num_words) // ROW_QUANTUM, 1) * ROW_QUANTUM


def row_chunks(num_rows: int, num_chunk_rows: int) -> Iterator[slice]:
    """Cut rows into chunks, the last one shorter."""
    for start in range(0, num_rows, num_chunk_rows):
        yield slice(start, min(start + num_chunk_rows, num_rows))


class _ExactLoss(torch.autograd.Function):
    """Forward keeps the logits; backward puts their gradient in their place."""

    @staticmethod
    def forward(ctx: Any, hidden_BTD: Tensor, call: LossCall) -> Tensor:
        stay = call.visit()
        try:
            leaf = hidden_BTD.detach().requires_grad_()
            with torch.enable_grad():
                # A view: a leaf's cast would be kept by autocast until its end.
                logits = call.head(leaf.view_as(leaf))
            loss, total_weight = _reduce(_rows(logits.detach()), call)
        except BaseException:
            stay.end()
            raise
        ctx.held = (call, stay, leaf, logits, total_weight)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.held is None:
            raise RuntimeError("the loss was differentiated before: its logits are gone")
        (call, stay, leaf, logits, total_weight), ctx.held = ctx.held, None
        try:
            buffer_RV = _rows(logits.detach())
            for rows in call.chunks(buffer_RV):
                put_gradient(buffer_RV[rows], call.target_R[rows], grad, total_weight, call)
            (grad_hidden,) = torch.autograd.grad(logits, leaf, buffer_RV.view_as(logits))
        finally:
            stay.end()
        return grad_hidden, None


def _rows(logits_BTV: Tensor) -> Tensor:
    """The logits as rows, in the same memory."""
    return logits_BTV.view(-1, logits_BTV.shape[-1])


def _scaled(logits_CV: Tensor, call: LossCall) -> Tensor:
    for op in call.ops:
        logits_CV = op(logits_CV)
    return logits_CV


def _log_probs(logits_CV: Tensor, call: LossCall) -> Tensor:
    return torch.log_softmax(_scaled(logits_CV, call).float(), dim=1)


def _reduce(logits_RV: Tensor, call: LossCall) -> tuple[Tensor, Tensor]:
    """The loss, and what `nll_loss` says of the rows that count."""
    ignored_R = call.target_R == call.ignore_index
    picked_R1 = logits_RV.new_empty((len(logits_RV), 1), dtype=torch.float32)
    column_R1 = call.target_R.masked_fill(ignored_R, 0)[:, None]
    for rows in call.chunks(logits_RV):
        picked_R1[rows] = _log_probs(logits_RV[rows], call).gather(1, column_R1[rows])
    target_R = torch.zeros_like(call.target_R).masked_fill(ignored_R, call.ignore_index)
    loss, total_weight = _nll_forward(picked_R1, target_R, None, call.reduction, call.ignore_index)
    return loss, total_weight


def put_gradient(
    logits_CV: Tensor, target_C: Tensor, grad: Tensor, total_weight: Tensor, call: LossCall
) -> None:
    """Put the gradient of a chunk's logits in their place.

    Args:
        logits_CV: As the head gave them; overwritten.
        target_C: Their labels.
        grad: The gradient of the reduced loss.
        total_weight: Rows that count, in the whole.
        call: The loss.
    """
    log_probs_CV = _log_probs(logits_CV, call)
    reduction, ignored = call.reduction, call.ignore_index
    picked_CV = _nll_backward(grad, log_probs_CV, target_C, None, reduction, ignored, total_weight)
    grad_CV = _log_softmax_backward(picked_CV, log_probs_CV, 1, torch.float32)
    del picked_CV, log_probs_CV
    if call.ops:
        leaf = logits_CV.detach().clone().requires_grad_()
        with torch.enable_grad():
            scaled = _scaled(leaf, call)
        (grad_CV,) = torch.autograd.grad(scaled, leaf, grad_CV.to(scaled.dtype))
    logits_CV.copy_(grad_CV)
