"""Staged bytes on a device: copies really end late, and registered, plain and stored are one."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.measure.fingerprint import same_bits
from poros.streaming import staging
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.host_memory import HostBuffer
from poros.streaming.host_tier import HostTier
from poros.streaming.staging import Staging
from tests.engine.loading.tiny_models import write_model

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
NUM_BYTES = 24 * 2**20
PIECE_BYTES = 4 * 2**20


class Holder:
    """Something that a tensor hangs on."""

    def __init__(self, value: int) -> None:
        self.weight = torch.full((NUM_BYTES,), value, dtype=torch.uint8)


def ring_of(tier: HostTier) -> tuple[BlockManager, list[Block]]:
    blocks = [
        Block.lay_out(k, [FrozenTensor("weight", Holder(k + 1), "weight")], device=CUDA, tier=tier)
        for k in range(6)
    ]
    return BlockManager(blocks, device=CUDA), blocks


def wrong_visits(tier: HostTier) -> int:
    """Visits that found other bytes than the block's, the device being slow with each of them."""
    ring, blocks = ring_of(tier)
    found = []
    for direction in (1, -1) * 2:
        for index in list(range(6))[::direction]:
            ring.bind(index, direction=direction)
            torch.cuda._sleep(20_000_000)
            [tensor] = blocks[index].tensors
            found.append((tensor != index + 1).any())
            if index == 3:
                # The copies queued from here on wait on the device, while the host goes on.
                with torch.cuda.stream(ring.lane._stream):
                    torch.cuda._sleep(100_000_000)
    return sum(bool(wrong) for wrong in found)


def test_a_slow_device_finds_the_right_bytes_in_every_slot() -> None:
    tier = HostTier(pins=False, staging=Staging(CUDA, piece_bytes=PIECE_BYTES))
    assert wrong_visits(tier) == 0
    assert all(piece.buffer.registered for piece in tier.staging._pieces)


def test_without_waiting_for_a_pieces_copy_it_does_not() -> None:
    with mock.patch.object(staging._Piece, "wait_copied", return_value=None):
        tier = HostTier(pins=False, staging=Staging(CUDA, piece_bytes=PIECE_BYTES))
        assert wrong_visits(tier) > 0


def test_what_the_system_refuses_to_pin_is_staged() -> None:
    with mock.patch.object(HostBuffer, "register", return_value=None):
        tier = HostTier(staging=Staging(CUDA, piece_bytes=PIECE_BYTES))
        ring, blocks = ring_of(tier)
        ring.bind(0)
        assert not blocks[0].registered
        assert tier.staging.num_bytes == 3 * PIECE_BYTES
        assert bool((blocks[0].tensors[0] == 1).all())


def test_every_tier_has_the_same_blocks_and_says_which_it_is(tmp_path) -> None:
    folder, found = write_model(tmp_path / "model"), {}
    for tier in ("registered", "pageable", "disk"):
        base = load_base_model(
            SafetensorsSource(folder), device=CUDA, cache=tmp_path / "cache", emit=lambda _: None,
            host_tier=tier,
        )  # fmt: skip
        assert base.host_tier == tier
        assert {block.registered for block in base.blocks} == {tier == "registered"}
        ring = BlockManager(base.blocks, device=CUDA)
        found[tier] = []
        for block in base.blocks:
            ring.bind(block.index)
            found[tier] += [tensor.clone() for tensor in block.tensors]
    assert len(found["registered"]) > 30
    for tier in ("pageable", "disk"):
        pairs = zip(found["registered"], found[tier], strict=True)
        assert all(same_bits(a.cpu(), b.cpu()) for a, b in pairs)
