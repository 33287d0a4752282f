"""Blocks in plain memory and in files reach the slots through small pieces, byte for byte."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from poros.errors import PorosModelError
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.device_slots import HostLane, Slot
from poros.streaming.file_reader import FilePart, FileReader
from poros.streaming.host_tier import HostTier
from poros.streaming.staging import Staging
from tests.engine.streaming.toy import CPU, ToyModel, gradients

SIZES = (1000, 1, 4096, 3, 700)
PIECE_BYTES = 512
"""Pieces that end within tensors, and hold several of them."""


class Holder:
    """Something that a tensor hangs on."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight


def tier_of(name: str) -> HostTier:
    staging = Staging(CPU, piece_bytes=PIECE_BYTES)
    return HostTier(pins=False, staging=staging, files=FileReader() if name == "disk" else None)


def stored_blocks(folder: Path, tier: HostTier, num_blocks: int = 5) -> tuple[list[Block], list]:
    """Blocks of random bytes, in files if the tier has these, and the bytes of their tensors."""
    blocks, expected = [], []
    generator = torch.Generator().manual_seed(1)
    for index in range(num_blocks):
        tensors = [
            torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in SIZES
        ]
        path = folder / f"block-{index}"
        path.write_bytes(b"head" + b"".join(t.numpy().tobytes() for t in tensors))
        frozen, offset_bytes = [], 4
        for k, tensor in enumerate(tensors):
            # One of them is nowhere but in memory, as an offset or a converted norm.
            part = FilePart(path, offset_bytes, len(tensor)) if tier.files and k != 3 else None
            frozen.append(FrozenTensor(f"t{k}", Holder(tensor.clone()), "weight", part))
            offset_bytes += len(tensor)
        blocks.append(Block.lay_out(index, frozen, device=CPU, tier=tier))
        expected.append(tensors)
    return blocks, expected


@pytest.mark.parametrize("name", ["pageable", "disk"])
def test_a_ring_has_the_bytes_of_every_block_at_every_visit(name, tmp_path):
    tier = tier_of(name)
    blocks, expected = stored_blocks(tmp_path, tier)
    ring = BlockManager(blocks, device=CPU)
    for direction in (1, -1) * 3:
        for index in list(range(5))[::direction]:
            ring.bind(index, direction=direction)
            found = blocks[index].tensors
            assert all(torch.equal(a, b) for a, b in zip(found, expected[index], strict=True))
    assert ring.num_copies > 15
    assert tier.staging.num_bytes == 3 * PIECE_BYTES
    in_memory = [sum(map(len, tensors)) for tensors in expected]
    if name == "disk":
        assert [block.host_bytes for block in blocks] == [SIZES[3]] * 5
        assert [block.home for block in blocks] == [[]] * 5
    else:
        assert all(b.host_bytes == b.num_bytes >= n for b, n in zip(blocks, in_memory, strict=True))


def test_bytes_on_disk_can_be_looked_at_without_a_visit(tmp_path):
    blocks, expected = stored_blocks(tmp_path, tier_of("disk"))
    for block, tensors in zip(blocks, expected, strict=True):
        assert all(torch.equal(block.tensor(f"t{k}"), t) for k, t in enumerate(tensors))


def test_gradients_through_staging_are_those_without(monkeypatch):
    plain, staged = ToyModel(num_layers=6), ToyModel(num_layers=6)
    from tests.engine.streaming import toy

    toy.stream(plain)
    own = Block.lay_out.__func__
    tier = tier_of("pageable")
    monkeypatch.setattr(
        Block, "lay_out", classmethod(lambda cls, *a, **k: own(cls, *a, **k | {"tier": tier}))
    )
    toy.stream(staged)
    pairs = list(zip(gradients(plain, steps=3), gradients(staged, steps=3), strict=True))
    assert pairs
    assert all(torch.equal(a, b) for a, b in pairs)


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, (1, 1))


def cut(path: Path) -> None:
    os.truncate(path, 2000)


@pytest.mark.parametrize("harm", [change, cut])
def test_a_file_that_changes_under_the_run_is_an_error_and_never_wrong_bytes(harm, tmp_path):
    blocks, expected = stored_blocks(tmp_path, tier_of("disk"))
    ring = BlockManager(blocks, device=CPU, prefetch=False)
    ring.bind(2)
    whole = (tmp_path / "block-3").read_bytes()
    stat = (tmp_path / "block-3").stat()
    harm(tmp_path / "block-3")
    for _ in range(2):  # the slot does not pretend to have it
        with pytest.raises(PorosModelError, match="changed since it was opened") as caught:
            ring.bind(3)
        assert "block-3" in str(caught.value)
        assert all(slot.coming is None for slot in ring._slots)  # the error's frames keep the run
    (tmp_path / "block-3").write_bytes(whole)
    os.utime(tmp_path / "block-3", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    ring.bind(3)
    found = blocks[3].tensors
    assert all(torch.equal(a, b) for a, b in zip(found, expected[3], strict=True))


def test_a_file_that_changes_while_it_is_read_is_an_error_too(tmp_path, monkeypatch):
    blocks, _ = stored_blocks(tmp_path, tier_of("disk"))
    ring = BlockManager(blocks, device=CPU, prefetch=False)
    read = os.preadv

    def changed_and_read(*arguments):
        change(tmp_path / "block-3")
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", changed_and_read)
    with pytest.raises(PorosModelError, match="changed since it was opened"):
        ring.bind(3)


def test_a_file_whose_name_another_takes_is_read_on(tmp_path):
    blocks, expected = stored_blocks(tmp_path, tier_of("disk"))
    other = tmp_path / "other"
    other.write_bytes(b"x" * 6000)
    other.replace(tmp_path / "block-1")
    (tmp_path / "block-2").unlink()
    ring = BlockManager(blocks, device=CPU)
    for index in (1, 2):
        ring.bind(index)
        found = blocks[index].tensors
        assert all(torch.equal(a, b) for a, b in zip(found, expected[index], strict=True))


def test_a_piece_is_filled_again_only_after_its_copy():
    """The copies here end late, when they are waited for, as on a device."""
    staging = Staging(CPU, piece_bytes=8, num_pieces=2)
    source = torch.arange(64, dtype=torch.uint8)
    target = torch.zeros(64, dtype=torch.uint8)

    class Late:
        """A copy that is made when its end is waited for."""

        def __init__(self, begin: int, part: Tensor) -> None:
            self.begin, self.part = begin, part

        def synchronize(self) -> None:
            target[self.begin : self.begin + len(self.part)].copy_(self.part)

    class Bytes:
        num_bytes = 64

        def fetch(self, begin: int, part: Tensor) -> None:
            part.copy_(source[begin : begin + len(part)])

    staging.start(Bytes(), Late).result()
    for piece in staging._pieces:
        piece.wait_copied()
    assert torch.equal(target, source)


def test_a_copy_that_nobody_waited_for_does_not_land_in_the_slots_next_bytes():
    gate = threading.Event()
    slot, lane, staging = Slot(8, CPU), HostLane(), Staging(CPU, piece_bytes=8)

    class Slow:
        num_bytes = 8

        def fetch(self, begin: int, part: Tensor) -> None:
            gate.wait(5)
            part.fill_(1)

    lane.copy_staged(slot, Slow(), staging)
    threading.Timer(0.05, gate.set).start()
    lane.copy(slot, torch.full((8,), 2, dtype=torch.uint8))
    lane.wait(slot)
    assert slot.buffer.tolist() == [2] * 8


def test_a_reader_gives_the_first_error_and_calls_nothing_after_it(tmp_path):
    (tmp_path / "short").write_bytes(b"abc")
    called = []
    with FileReader() as reader:
        future = reader.start(
            [(FilePart(tmp_path / "short", 1, 9), torch.empty(9, dtype=torch.uint8))],
            then=lambda: called.append(1),
        )
        with pytest.raises(PorosModelError, match="became shorter"):
            future.result()
        with pytest.raises(PorosModelError, match="No such file"):
            reader.hold(tmp_path / "absent")
    assert called == []
