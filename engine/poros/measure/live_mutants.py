"""Mutants of a live model that is prepared: what its layers' layout protects from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from poros.dropin import prepare, selection
from poros.dropin.prepare import unprepare
from poros.measure.live_arm import prepare_live
from poros.measure.mutant_bench import Bench, Mutant
from poros.streaming.block import Block, FrozenTensor

LOSSES = r"^loss\."
GRADS = r"^grad\."


def _prepare_again(bench: Bench) -> None:
    """Give the bench's model back, and prepare it anew."""
    streamed = bench.streamed
    streamed.attachment.detach()
    streamed.manager.forget()
    unprepare(streamed.model)
    live = prepare_live(streamed.base, streamed.model, bench.cell, streamed.device)
    streamed.manager, streamed.attachment = live.prepared.manager, live.prepared.attachment


def _swap(block: Block) -> None:
    """Exchange the bytes of the first two tensors of one size that differ."""
    pairs = (
        (a, b)
        for k, a in enumerate(block.home)
        for b in block.home[k + 1 :]
        if a.numel() and (a.dtype, a.shape) == (b.dtype, b.shape) and not torch.equal(a, b)
    )
    one, other = next(pairs)
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


@contextlib.contextmanager
def laid_out_wrong(bench: Bench) -> Iterator[None]:
    """Two tensors of the middle layer lie in each other's place."""
    lay_out, middle = Block.lay_out, bench.num_layers // 2

    def wrong(index: int, frozen: Sequence[FrozenTensor], **options: Any) -> Block:
        block = lay_out(index, frozen, **options)
        if index == middle:
            _swap(block)
        return block

    with mock.patch.object(Block, "lay_out", wrong):
        _prepare_again(bench)
    try:
        yield
    finally:
        _swap(bench.streamed.base.blocks[middle])
        _prepare_again(bench)


@contextlib.contextmanager
def left_where_it_was(bench: Bench) -> Iterator[None]:
    """Of the middle layer nothing travels."""
    own, middle = selection.travelling_tensors, bench.num_layers // 2

    def fewer(*args: Any, **options: Any) -> list[list[FrozenTensor]]:
        groups = own(*args, **options)
        groups[middle] = []
        return groups

    with mock.patch.object(prepare, "travelling_tensors", fewer):
        _prepare_again(bench)
    try:
        yield
    finally:
        _prepare_again(bench)


LIVE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a live model's layer laid out wrong", laid_out_wrong, live=True,
        first=r"^loss\.0", differ=(LOSSES, GRADS),
    ),
    Mutant(
        "a live model's layer does not travel", left_where_it_was, live=True, word="REFUSED",
    ),
)  # fmt: skip
