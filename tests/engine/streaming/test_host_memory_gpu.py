"""Pinned pages and copies under way, as only a CUDA device shows them."""

from __future__ import annotations

import gc

import pytest
import torch

from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.host_memory import HostBuffer

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
NUM_BYTES = 64 * 2**20


class Holder:
    """Something that a tensor hangs on."""

    def __init__(self, value: int) -> None:
        self.weight = torch.full((NUM_BYTES,), value, dtype=torch.uint8)


def test_a_buffer_at_the_address_of_one_before_gives_the_device_its_own_bytes() -> None:
    for value in range(1, 9):
        buffer = HostBuffer(NUM_BYTES, CUDA)
        buffer.tensor.fill_(value)
        buffer.register()
        assert buffer.registered
        arrived = buffer.tensor.to(CUDA, non_blocking=True)
        assert bool((arrived == value).all())
        del buffer


def test_a_refused_pinning_is_not_the_next_kernels_error() -> None:
    buffer = HostBuffer(NUM_BYTES, CUDA)
    again = HostBuffer(NUM_BYTES, CUDA)
    buffer.register()
    again.tensor = buffer.tensor
    again.register()
    assert not again.registered
    assert torch.ones(5, device=CUDA).sum().item() == 5


def test_copies_of_a_dropped_ring_do_not_write_into_its_freed_memory() -> None:
    holders = [Holder(value) for value in range(1, 5)]
    blocks = [
        Block.lay_out(index, [FrozenTensor("weight", holder, "weight")], device=CUDA)
        for index, holder in enumerate(holders)
    ]
    for _ in range(5):
        torch.cuda.synchronize(CUDA)  # noqa: TID251  # all streams, for once
        ring = BlockManager(blocks, device=CUDA, num_slots=4)
        ring.bind(0)
        ring.forget()
        del ring
        gc.collect()
        taken = [torch.full((NUM_BYTES,), 77, dtype=torch.uint8, device=CUDA) for _ in range(4)]
        torch.cuda.synchronize(CUDA)  # noqa: TID251  # all streams, for once
        assert all(bool((tensor == 77).all()) for tensor in taken)
        del taken
