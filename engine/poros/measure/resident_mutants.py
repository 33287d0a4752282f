"""Mutants of resident blocks: their places are not the ring's, and each has one of its own."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from unittest import mock

from poros.measure.mutant_bench import Bench, Mutant, Setting
from poros.measure.plan import Cell
from poros.memory_plan import evenly_spaced
from poros.streaming.block_manager import BlockManager

TWO_RESIDENT = Setting(num_resident=2)

GRADS = r"^grad\."


def with_resident_blocks(cell: Cell, num_layers: int) -> Cell:
    """The cell with a place for every fourth of its blocks."""
    num_blocks = -(-num_layers // cell.block_size)
    return dataclasses.replace(cell, resident=evenly_spaced(num_blocks, -(-num_blocks // 4)))


@contextlib.contextmanager
def place_given_away(bench: Bench) -> Iterator[None]:
    """The first resident block's place is given to the second one, and each believes it is there.

    The second comes after the first has computed, so the first forward of the run is as it was.
    """
    del bench
    settle_in = BlockManager._settle_in

    def shared(manager: BlockManager, index: int) -> None:
        first, *others = manager.resident
        for other in others:
            manager._places[other] = manager._places[first]
        settled = manager.num_copies
        if index != first and manager._places[first].holds == first:
            manager._places[first].holds = None
            settle_in(manager, index)
            assert manager.num_copies == settled + 1
        elif index == first:
            settle_in(manager, index)

    with mock.patch.object(BlockManager, "_settle_in", shared):
        yield


RESIDENT_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a resident block's place given to another block", place_given_away, TWO_RESIDENT,
        first=r"^loss\.1", equal=(r"^loss\.0",), differ=(r"^loss\.1", GRADS),
    ),
)  # fmt: skip
