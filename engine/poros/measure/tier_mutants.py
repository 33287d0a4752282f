"""Mutants of blocks that pass through staging: what waiting for a piece's copy protects from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from torch import Tensor

from poros.measure.mutant_bench import Bench, Mutant
from poros.measure.plan import Cell
from poros.streaming.block import Block

LOSSES = r"^loss\."
GRADS = r"^grad\."


def staged_tier(cell: Cell) -> str:
    """Blocks on disk; a dense base may be in files of another type."""
    return "disk" if cell.precision == "nf4" else "pageable"


@contextlib.contextmanager
def piece_filled_again(bench: Bench) -> Iterator[None]:
    """The middle block's piece has the next block's bytes before its copy begins."""
    blocks, middle, fetch = bench.streamed.base.blocks, bench.num_layers // 2, Block.fetch

    def hasty(block: Block, begin_byte: int, target: Tensor) -> None:
        fetch(block, begin_byte, target)
        if block is blocks[middle]:
            fetch(blocks[middle + 1], begin_byte, target)

    with mock.patch.object(Block, "fetch", hasty):
        yield


@contextlib.contextmanager
def piece_copied_early(bench: Bench) -> Iterator[None]:
    """On the way back the middle block's copy takes the zeros that its piece began with."""
    blocks, middle, fetch = bench.streamed.base.blocks, bench.num_layers // 2, Block.fetch
    num_visits = 0

    def late(block: Block, begin_byte: int, target: Tensor) -> None:
        nonlocal num_visits
        is_middle = block is blocks[middle]
        num_visits += is_middle and begin_byte == 0
        if is_middle and num_visits % 2 == 0:
            target.zero_()
        else:
            fetch(block, begin_byte, target)

    with mock.patch.object(Block, "fetch", late):
        yield


def no_copy_back(bench: Bench) -> str:
    """The last two blocks stay in the two slots for the way back."""
    stays = bench.num_layers // 2 >= bench.num_layers - 2
    return "the middle one of so few blocks is not copied on the way back" if stays else ""


TIER_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "staging piece filled again before its copy", piece_filled_again, tier=True,
        first=r"^loss\.0", differ=(LOSSES, GRADS),
    ),
    Mutant(
        "staging piece copied before it is filled", piece_copied_early, tier=True,
        first=r"^grad\..*layers\.0\.", equal=(LOSSES, r"^grad\..*layers\.{above_middle}\."),
        differ=(r"^grad\..*layers\.{below_middle}\.",), left_out=no_copy_back,
    ),
)  # fmt: skip
