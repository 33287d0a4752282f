"""`poros check --table`: which sample lengths fit which cards, from headers alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from poros.check_memory import DEVICE_BAND, Wanted, parts, planned
from poros.check_needs import CARD_PART, TIME_BAND
from poros.doctor_cards import Gpu
from poros.doctor_gpu import read_driver, visible_gpus
from poros.errors import PorosError
from poros.memory_plan import MemoryPlan
from poros.memory_planner import Rates
from poros.memory_sizes import ModelSizes
from poros.plan_history import About, Measured, corrected, run_of

Verdict = Literal["fits", "tight", "no"]

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CARDS_GB = (4, 6, 8, 12, 16, 24, 48)
"""The usual ones of those that are sold, in 2**30 bytes."""
MOST_TOKENS = 131_072
"""Longer samples are not looked for."""
_STEP_TOKENS = 64
_EXACT = (1.0, 1.0)
"""The band of what was measured."""


@dataclass(frozen=True, slots=True)
class Column:
    """A card.

    Attributes:
        name: ``8 GB``, or the name of a card of this machine.
        room_bytes: What a process can have of it.
        here: Whether it is a card of this machine, as free as it is now.
        longest: Tokens of the longest sample that fits; 0: none does.
    """

    name: str
    room_bytes: int
    here: bool
    longest: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A sample length on a card.

    Attributes:
        verdict: ``tight``: the estimate fits, its upper end does not.
        device_bytes: What the process takes of the card, [low, high]; of the least that would be
            needed where it does not fit.
        num_resident: Blocks that stay on the card.
        num_blocks: All blocks.
        step_s: Seconds of an optimizer step, [low, high]; None: no rates are known.
        bottleneck: What the time hangs on, in words.
        parts: What the card's memory is for, in bytes.
        measured: A run of this model, on this card, of this shape and plan took so much.
    """

    verdict: Verdict
    device_bytes: list[int]
    num_resident: int
    num_blocks: int
    step_s: list[float] | None
    bottleneck: str
    parts: dict[str, int]
    measured: bool


@dataclass(frozen=True, slots=True)
class Table:
    """All of it; ``cells`` has a row for each length, with a cell for each column."""

    batch: int
    lengths: list[int]
    columns: list[Column]
    cells: list[list[Cell]]


def fit_table(
    sizes: ModelSizes,
    wanted: Wanted,
    rates: Rates | None = None,
    *,
    gpus: Sequence[Gpu] = (),
    lengths: Sequence[int] = LENGTHS,
    history: Sequence[tuple[About, Measured]] = (),
) -> Table:
    """Plan each length for each card.

    Args:
        sizes: Of the model.
        wanted: Batch and rank; its room, where one is named, is a column too.
        rates: Of link and card; None: times are unknown.
        gpus: Of this machine: each is a column.
        lengths: In tokens of a sample.
        history: What runs of this model measured: it goes before estimates on the same card.
    """
    rooms = [(f"{size} GB", int(CARD_PART * size * 2**30), False) for size in CARDS_GB]
    if wanted.vram_gb is not None:
        rooms.insert(0, (f"{wanted.vram_gb:g} GB", int(wanted.vram_gb * 1e9), False))
    rooms = [(gpu.name, gpu.free_bytes, True) for gpu in gpus] + rooms
    columns = [Column(name, room, here, longest(sizes, wanted, room)) for name, room, here in rooms]
    cells = [
        [
            _cell(
                sizes,
                replace(wanted, seq_len=length),
                column.room_bytes,
                rates,
                _alike(history, column, replace(wanted, seq_len=length)),
            )
            for column in columns
        ]
        for length in lengths
    ]
    return Table(wanted.batch, list(lengths), columns, cells)


def gpus_here() -> tuple[Gpu, ...]:
    """The cards of this machine that a run would see."""
    return visible_gpus(read_driver(), os.environ)


def longest(sizes: ModelSizes, wanted: Wanted, room_bytes: int) -> int:
    """Tokens of the longest sample whose smallest plan fits, in steps of 64; 0: none does."""

    def fits(steps: int) -> bool:
        least = planned(sizes, replace(wanted, vram_gb=None, seq_len=steps * _STEP_TOKENS))
        return least.device_bytes <= room_bytes

    low, high = 0, MOST_TOKENS // _STEP_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * _STEP_TOKENS


def table_record(table: Table) -> dict[str, object]:
    """For JSON."""
    return asdict(table)


def table_lines(table: Table) -> list[str]:
    """For people: a word for each cell, the longest sample of each card, what a word means."""
    lines = [_line("tokens", ["here" if column.here else column.name for column in table.columns])]
    for length, row in zip(table.lengths, table.cells, strict=True):
        lines.append(_line(f"{length:,}", [cell.verdict for cell in row]))
    return [
        *lines,
        _line("longest", [f"{c.longest:,}" if c.longest else "-" for c in table.columns]),
        "tight: within the error of the estimate; longest: the longest sample that fits",
    ]


def _line(head: str, words: Sequence[str]) -> str:
    return f"{head:>8}" + "".join(f" {word:>7}" for word in words)


def _alike(
    history: Sequence[tuple[About, Measured]], column: Column, wanted: Wanted
) -> list[Measured]:
    """Runs of the same shape on the card of a column."""
    shape = (column.name, wanted.step.num_rows, wanted.rank)
    is_here = column.here
    return [run for of, run in history if is_here and (of.card, of.num_rows, of.rank) == shape]


def _cell(
    sizes: ModelSizes,
    wanted: Wanted,
    room_bytes: int,
    rates: Rates | None,
    runs: Sequence[Measured],
) -> Cell:
    def correct(plan: MemoryPlan, peak: int) -> int:
        return corrected(plan, peak, runs)

    least = planned(sizes, replace(wanted, vram_gb=None), rates, correct)
    verdict: Verdict = "fits" if DEVICE_BAND[1] * least.device_bytes <= room_bytes else "tight"
    try:
        found = planned(sizes, replace(wanted, vram_gb=room_bytes / 1e9), rates, correct)
    except PorosError:
        found, verdict = least, "no"
    known = run_of(found.plan, runs)
    sizes_band, time_band = (DEVICE_BAND, TIME_BAND) if known is None else (_EXACT, _EXACT)
    step_s = found.step_s if known is None else known.step_s
    return Cell(
        verdict=verdict,
        device_bytes=[round(found.device_bytes * end) for end in sizes_band],
        num_resident=len(found.plan.resident),
        num_blocks=sizes.num_blocks,
        step_s=None if step_s is None else [step_s * end for end in time_band],
        bottleneck=found.bottleneck,
        parts=parts(found, sizes, wanted.step),
        measured=known is not None,
    )
