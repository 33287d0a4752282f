"""Micro-batches in an order fixed by (seed, epoch), with a cursor of two whole numbers.

An epoch uses every sample exactly once. Its last step may hold fewer micro-batches and its last
micro-batch fewer rows: nothing is left out and nothing is seen twice, and since a step's loss is
normalised by its own label tokens, a short step weighs its tokens right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poros.data.order import permutation
from poros.data.packing import (
    block_diagonal_mask,
    document_numbers,
    pack,
    restarting_positions,
)
from poros.data.samples import IGNORED, Sample
from poros.errors import PorosDataError

# B rows of a micro-batch, T tokens of a row.

_PACKING_STREAM = -1
"""Stands where an epoch's number stands: how samples are packed is the same in every epoch."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch on the host.

    Args:
        input_ids_BT: Token ids, filled up on the right.
        labels_BT: Ids to learn, or -100.
        attention_mask: None where no row is filled up; (B, T) of 0 and 1; or, packed, (B, 1, T, T)
            of bool, which SDPA takes as it is (eager attention would add it as a number).
        position_ids_BT: Positions where they restart, when packed.
        sample_ids: Samples in it, row by row.
        num_padding_tokens: Tokens that only fill rows up.
    """

    input_ids_BT: Tensor
    labels_BT: Tensor
    attention_mask: Tensor | None
    position_ids_BT: Tensor | None
    sample_ids: tuple[int, ...]
    num_padding_tokens: int = 0

    @property
    def num_label_tokens(self) -> int:
        """Tokens that the loss counts: the first of each row has nothing before it."""
        return int((self.labels_BT[:, 1:] != IGNORED).sum())

    @property
    def num_tokens(self) -> int:
        """Tokens of samples, padding left out."""
        return self.input_ids_BT.numel() - self.num_padding_tokens

    def model_inputs(self, device: torch.device) -> dict[str, Tensor]:
        """What a model's forward takes, without the labels, on the device."""
        named = {
            "input_ids": self.input_ids_BT,
            "attention_mask": self.attention_mask,
            "position_ids": self.position_ids_BT,
        }
        return {name: t.to(device) for name, t in named.items() if t is not None}


class StepBatches:
    """The micro-batches of each step.

    Args:
        samples: All samples, each with something to learn.
        batch_size: Rows of a micro-batch.
        accumulation: Micro-batches of a step.
        seed: Decides, with the epoch's number, the order.
        packing: Whether rows hold several samples.
        max_seq_length: Width of packed rows; no sample is longer.
        pad_token_id: Fills rows up.

    Raises:
        PorosDataError: There are no samples, or one has nothing to learn or is too long.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        *,
        batch_size: int,
        accumulation: int,
        seed: int,
        packing: bool,
        max_seq_length: int,
        pad_token_id: int,
    ) -> None:
        """Lay the samples into rows, once for all epochs, and stand before the first step."""
        check_samples(samples, max_seq_length)
        self._batch_size = batch_size
        self._accumulation = accumulation
        self._seed = seed
        self._pad_token_id = pad_token_id
        self._packed_width = max_seq_length if packing else None
        self._rows = make_rows(samples, seed=seed, packed_width=self._packed_width)
        self._epoch = 0
        self._position = 0
        self._order = self._order_of(0)

    @property
    def num_rows(self) -> int:
        """Rows of an epoch: packed rows, or samples."""
        return len(self._rows)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of every epoch, the last of which may be short."""
        return -(-len(self._rows) // (self._batch_size * self._accumulation))

    @property
    def cursor(self) -> dict[str, int]:
        """Where the next step begins: the epoch, and how many of its rows are done."""
        return {"epoch": self._epoch, "position": self._position}

    def seek(self, cursor: dict[str, int]) -> None:
        """Go to where a cursor was taken, in the same samples with the same settings.

        Raises:
            ValueError: No step begins there.
        """
        epoch, position = cursor["epoch"], cursor["position"]
        rows_per_step = self._batch_size * self._accumulation
        if epoch < 0 or position % rows_per_step or not 0 <= position < len(self._rows):
            raise ValueError(f"no step begins at {cursor} of {len(self._rows)} rows")
        self._epoch, self._position = epoch, position
        self._order = self._order_of(epoch)

    def next_step(self) -> list[Batch]:
        """The micro-batches of the next step, and one step on; epochs follow without an end."""
        rows_per_step = self._batch_size * self._accumulation
        numbers = self._order[self._position : self._position + rows_per_step]
        self._position += rows_per_step
        if self._position >= len(self._rows):
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._order_of(self._epoch)
        rows = [self._rows[number] for number in numbers]
        return list(_batches(rows, self._batch_size, self._packed_width, self._pad_token_id))

    def _order_of(self, epoch: int) -> list[int]:
        return permutation(len(self._rows), self._seed, epoch)


def batches_in_order(
    samples: Sequence[Sample], *, batch_size: int, pad_token_id: int
) -> Iterator[Batch]:
    """Each sample once, as they stand, unpacked: for evaluation."""
    rows = [(sample,) for sample in samples]
    return _batches(rows, batch_size, None, pad_token_id)


def check_samples(samples: Sequence[Sample], max_seq_length: int) -> None:
    """Refuse samples that would give a model NaN or too much.

    Raises:
        PorosDataError: There are none, or one has nothing to learn or is too long.
    """
    if not samples:
        raise PorosDataError("no samples", remediation="give at least one row of training data")
    for sample in samples:
        if sample.num_label_tokens == 0 or sample.labels[0] != IGNORED:
            problem = "has nothing to learn" if not sample.num_label_tokens else "learns token 0"
        elif len(sample) > max_seq_length:
            problem = f"has {len(sample)} tokens, more than max_seq_length {max_seq_length}"
        else:
            continue
        raise PorosDataError(
            f"sample {sample.sample_id} {problem}",
            where=f"line {sample.line}",
            remediation="prepare the data with load_data",
        )


def make_rows(
    samples: Sequence[Sample], *, seed: int, packed_width: int | None
) -> list[tuple[Sample, ...]]:
    """The samples of each row: one, or as many as fit a packed row."""
    if packed_width is None:
        return [(sample,) for sample in samples]
    order = permutation(len(samples), seed, _PACKING_STREAM)
    packs = pack([len(sample) for sample in samples], packed_width, order)
    return [tuple(samples[number] for number in numbers) for numbers in packs]


def collate(rows: Sequence[tuple[Sample, ...]], *, pad_token_id: int) -> Batch:
    """Rows of one sample each, filled up to the longest of them."""
    samples = [sample for (sample,) in rows]
    lengths = [len(sample) for sample in samples]
    width = max(lengths)
    num_padding = width * len(samples) - sum(lengths)
    is_token_BT = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Batch(
        input_ids_BT=_filled_up([(s.input_ids,) for s in samples], width, pad_token_id),
        labels_BT=_filled_up([(s.labels,) for s in samples], width, IGNORED),
        attention_mask=is_token_BT.long() if num_padding else None,
        position_ids_BT=None,
        sample_ids=tuple(sample.sample_id for sample in samples),
        num_padding_tokens=num_padding,
    )


def collate_packed(rows: Sequence[tuple[Sample, ...]], *, width: int, pad_token_id: int) -> Batch:
    """Rows of several samples each, all of the same width."""
    documents = [document_numbers(row, width) for row in rows]
    num_tokens = sum(len(sample) for row in rows for sample in row)
    return Batch(
        input_ids_BT=_filled_up([[s.input_ids for s in r] for r in rows], width, pad_token_id),
        labels_BT=_filled_up([[s.labels for s in r] for r in rows], width, IGNORED),
        attention_mask=torch.stack([block_diagonal_mask(d_T) for d_T in documents])[:, None],
        position_ids_BT=torch.stack([restarting_positions(d_T) for d_T in documents]),
        sample_ids=tuple(sample.sample_id for row in rows for sample in row),
        num_padding_tokens=width * len(rows) - num_tokens,
    )


def _batches(
    rows: Sequence[tuple[Sample, ...]], batch_size: int, width: int | None, pad_token_id: int
) -> Iterator[Batch]:
    for start in range(0, len(rows), batch_size):
        chunk = rows[start : start + batch_size]
        if width is None:
            yield collate(chunk, pad_token_id=pad_token_id)
        else:
            yield collate_packed(chunk, width=width, pad_token_id=pad_token_id)


def _filled_up(rows: Sequence[Sequence[Any]], width: int, filler: int) -> Tensor:
    filled = torch.full((len(rows), width), filler, dtype=torch.int64)
    for row, parts in zip(filled, rows, strict=True):
        numbers = [number for part in parts for number in part]
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return filled
