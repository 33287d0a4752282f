"""Mutants of the base's bytes: changed on the host, where every copy reads them, and put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from poros.measure.mutant_bench import Bench
from poros.streaming.block import Block


@contextlib.contextmanager
def _host_bytes(bench: Bench, change: Callable[[Block], None], *indices: int) -> Iterator[None]:
    """Change blocks on the host, and put their bytes back."""
    blocks = [bench.streamed.base.blocks[index] for index in indices]
    before = [block.host.clone() for block in blocks]
    for block in blocks:
        change(block)
    try:
        yield
    finally:
        for block, host in zip(blocks, before, strict=True):
            block.host.copy_(host)


def _named(block: Block, ending: str) -> list[Tensor]:
    """The block's tensors whose names end so; there must be some."""
    found = [block.tensor(place.name) for place in block.places if place.name.endswith(ending)]
    assert found, f"no tensor ends with {ending}"
    return found


def one_nibble(bench: Bench) -> Any:
    """One 4-bit weight of the middle block."""

    def flip(block: Block) -> None:
        packed = _named(block, "down_proj.weight")[0].view(-1)
        packed[packed.numel() // 2] ^= 0x80

    return _host_bytes(bench, flip, bench.num_layers // 2)


def absmax_up(bench: Bench) -> Any:
    """One group's 8-bit absmax, one step up."""

    def raise_one(block: Block) -> None:
        codes = _named(block, "weight.absmax")[-1].view(-1)
        k = int(codes.float().argmin())
        codes[k] += 1

    return _host_bytes(bench, raise_one, bench.num_layers // 2)


def nested_absmax_up(bench: Bench) -> Any:
    """Every float32 absmax of the absmaxes of one block, by its last bit."""

    def raise_all(block: Block) -> None:
        for nested in _named(block, "nested_absmax"):
            nested.copy_(torch.nextafter(nested, torch.full_like(nested, torch.inf)))

    return _host_bytes(bench, raise_all, *range(bench.num_layers))


def offset_dropped(bench: Bench) -> Any:
    """The absmaxes' offset of one block is zero."""

    def drop(block: Block) -> None:
        for offset in _named(block, "offset"):
            offset.zero_()

    return _host_bytes(bench, drop, bench.num_layers // 2)


def bias_lost(bench: Bench) -> Any:
    """The bias of one block's values is zero."""

    def lose(block: Block) -> None:
        _named(block, "v_proj.bias")[0].zero_()

    return _host_bytes(bench, lose, bench.num_layers // 2)


def blocks_swapped(bench: Bench) -> Any:
    """Two blocks in each other's place."""
    middle = bench.num_layers // 2
    first = bench.streamed.base.blocks[middle].host.clone()
    second = bench.streamed.base.blocks[middle + 1].host.clone()

    def swap(block: Block) -> None:
        block.host.copy_(second if block.index == middle else first)

    return _host_bytes(bench, swap, middle, middle + 1)
