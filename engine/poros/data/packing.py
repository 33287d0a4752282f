"""Several short samples in one row of fixed width, each blind to the others.

A packed row costs what its width costs, so few rows with little padding are what counts. The mask
is block-diagonal and the positions restart, so no logit of a sample depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poros.data.samples import Sample

# T tokens of the packed row; the mask's second T are the keys.

_OPEN_ROWS = 64
"""Rows that still take samples; bounds the work per sample on long data sets."""


def pack(lengths: Sequence[int], width: int, order: Sequence[int]) -> list[tuple[int, ...]]:
    """Which samples share a row: greedy, each into the first open row with room.

    Args:
        lengths: Tokens of each sample, none above ``width``.
        width: Tokens of a row.
        order: The samples' numbers in the order in which they are placed.

    Returns:
        Numbers of the samples of each row; every sample stands in exactly one.
    """
    closed: list[list[int]] = []
    open_rows: list[tuple[list[int], int]] = []
    for number in order:
        length = lengths[number]
        assert length <= width, "the length policy comes before packing"
        place = next((i for i, (_, room) in enumerate(open_rows) if room >= length), None)
        if place is not None:
            row, room = open_rows[place]
            row.append(number)
            open_rows[place] = (row, room - length)
            continue
        if len(open_rows) == _OPEN_ROWS:
            fullest = min(range(_OPEN_ROWS), key=lambda i: open_rows[i][1])
            closed.append(open_rows.pop(fullest)[0])
        open_rows.append(([number], width - length))
    return [tuple(row) for row in (*closed, *(row for row, _ in open_rows))]


def document_numbers(samples: Sequence[Sample], width: int) -> Tensor:
    """For each token of the row, the number of its sample in the row; padding counts as one more.

    Padding attends to itself alone: a row of the mask without a single key would be NaN.
    """
    lengths = [len(sample) for sample in samples]
    lengths.append(width - sum(lengths))
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def block_diagonal_mask(documents_T: Tensor) -> Tensor:
    """(T, T), true where the query may see the key: same document, not later."""
    same = documents_T[:, None] == documents_T[None, :]
    return same.tril_()


def restarting_positions(documents_T: Tensor) -> Tensor:
    """Position of each token in its document."""
    places = torch.arange(len(documents_T))
    starts = torch.searchsorted(documents_T, documents_T)
    return places - starts
