"""Mutants of head, loss and embeddings on the host: what their protections would let through.

But for the embedding's row, the loss of the first step stays equal: what is wrong is in the
backward, and the loss would go on to fall.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from poros.measure.mutant_bench import Bench, Mutant
from poros.measure.plan import Cell
from poros.training import exact_loss, host_ends, streamed_head

LOSSES = r"^loss\."
GRADS = r"^grad\."
FIRST_GRAD = r"^grad\..*layers\.0\."

CHUNK_ROWS = 16
"""Fewer than a micro-batch of the bench has."""


def with_ends_on_host(cell: Cell) -> Cell:
    """The cell with head and embeddings on the host, and a loss of several chunks."""
    return dataclasses.replace(
        cell, head_on_host=True, embeddings_on_host=True, loss_chunk_rows=CHUNK_ROWS
    )


@contextlib.contextmanager
def chunk_begins_early(bench: Bench) -> Iterator[None]:
    """Each chunk begins with the row before it, which has its gradient already."""
    del bench
    row_chunks = exact_loss.row_chunks

    def early(num_rows: int, num_chunk_rows: int) -> Iterator[slice]:
        for rows in row_chunks(num_rows, num_chunk_rows):
            yield slice(max(rows.start - 1, 0), rows.stop)

    with mock.patch.object(exact_loss, "row_chunks", early):
        yield


@contextlib.contextmanager
def head_leaves_early(bench: Bench) -> Iterator[None]:
    """The head's room is given to something else between the loss and its backward."""
    own = exact_loss.exact_loss

    def leaving(hidden_BTD: Tensor, call: exact_loss.LossCall) -> Tensor:
        loss = own(hidden_BTD, call)
        head = bench.streamed.head
        assert head is not None
        slot = head.visitor._slot
        assert slot is not None
        slot.buffer.copy_(slot.buffer.roll(256))
        return loss

    with mock.patch.object(streamed_head, "exact_loss", leaving):
        yield


@contextlib.contextmanager
def chunk_not_scaled(bench: Bench) -> Iterator[None]:
    """All chunks but the first take the gradient of a loss that is no mean."""
    del bench
    put_gradient = exact_loss.put_gradient

    def unscaled(logits_CV: Tensor, target_C: Tensor, grad: Tensor, *rest: Any) -> None:
        later = logits_CV.storage_offset() > 0
        put_gradient(logits_CV, target_C, torch.ones_like(grad) if later else grad, *rest)

    with mock.patch.object(exact_loss, "put_gradient", unscaled):
        yield


@contextlib.contextmanager
def neighbours_row(bench: Bench) -> Iterator[None]:
    """The second token of each sequence gets the embedding of another one."""
    del bench
    host_ids = host_ends.host_ids

    def wrong(ids_BT: Tensor) -> Tensor:
        ids_BT = host_ids(ids_BT).clone()
        ids_BT[:, 1] += torch.where(ids_BT[:, 1] > 0, -1, 1)
        return ids_BT

    with mock.patch.object(host_ends, "host_ids", wrong):
        yield


END_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "chunk of the loss begins one row early", chunk_begins_early, ends=True,
        first=FIRST_GRAD, equal=(LOSSES,), differ=(GRADS,),
    ),
    Mutant(
        "head released before its backward", head_leaves_early, ends=True,
        first=FIRST_GRAD, equal=(LOSSES,), differ=(GRADS,),
    ),
    Mutant(
        "a chunk's gradient not scaled", chunk_not_scaled, ends=True,
        first=FIRST_GRAD, equal=(LOSSES,), differ=(GRADS,),
    ),
    Mutant(
        "embedding row of another token", neighbours_row, ends=True,
        first=r"^loss\.0", differ=(LOSSES, GRADS),
    ),
)  # fmt: skip
