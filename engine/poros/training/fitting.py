"""Which part of a batch the device's memory is enough for, found by trying it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from poros.data.batches import Batch
from poros.streaming.shortage import free, is_shortage, let_go

NUM_LENGTHS = 16
"""A length is found to within this part of the one that was too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """A setting that fits: rows of a micro-batch, or, of a single one, tokens."""

    num_rows: int = 0
    num_tokens: int = 0


def fitting_setting(batch: Batch, is_enough: Callable[[Batch], bool]) -> Fitting | None:
    """The largest part of a batch that fits, fewer rows before shorter ones; None: no part does.

    Args:
        batch: One that does not fit.
        is_enough: Whether the memory is enough for a batch.
    """
    num_rows, num_tokens = batch.input_ids_BT.shape
    while num_rows > 1:
        num_rows //= 2
        if is_enough(part_of(batch, num_rows, num_tokens)):
            return Fitting(num_rows=num_rows)
    best, too_many = 0, NUM_LENGTHS
    while too_many - best > 1:
        middle = (best + too_many) // 2
        length = num_tokens * middle // NUM_LENGTHS
        if length and is_enough(part_of(batch, 1, length)):
            best = middle
        else:
            too_many = middle
    length = num_tokens * best // NUM_LENGTHS
    return Fitting(num_tokens=length) if length else None


def part_of(batch: Batch, num_rows: int, num_tokens: int) -> Batch:
    """The first rows of a batch and of each its first tokens; what to learn may be missing."""
    mask, positions_BT = batch.attention_mask, batch.position_ids_BT
    if mask is not None:
        lengths = [slice(num_tokens) if size > 1 else slice(None) for size in mask.shape[1:]]
        mask = mask[(slice(num_rows), *lengths)]
    return Batch(
        batch.input_ids_BT[:num_rows, :num_tokens],
        batch.labels_BT[:num_rows, :num_tokens],
        mask,
        None if positions_BT is None else positions_BT[:num_rows, :num_tokens],
        batch.sample_ids[:num_rows],
    )


def fits(
    attempt: Callable[[Batch], None],
    batch: Batch,
    device: torch.device,
    rest: Callable[[], None],
) -> bool:
    """Whether the device's memory is enough for an attempt with a batch.

    Args:
        attempt: Leaves nothing behind.
        batch: What with.
        device: Whose memory.
        rest: Gives back what the attempt brought to the device.
    """
    enough = True
    try:
        attempt(batch)
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        let_go(error)
        enough = False
    rest()
    free(device)
    return enough
