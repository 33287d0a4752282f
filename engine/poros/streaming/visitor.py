"""A block that is on the device for one use at a time, such as the head: its room comes and goes.

The ring's slots stay for ever. A visitor's buffer is taken from the allocator when its copy is
queued, and given back when the last who needed it says so.

[Note: given back only after the copy]
The allocator hands memory that is given back to the next kernels of the compute stream. That is
safe once this stream has waited for the copy, so a buffer whose copy nobody waited for is waited
for first. Telling the allocator of the copy stream instead would keep the memory from use until the
host next looks, which costs room at the very peak that the visitor is there to lower.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from poros.streaming.block import Block
from poros.streaming.block_manager import BlockManager
from poros.streaming.device_slots import Slot


class Stay:
    """The presence of a visitor's bytes on the device; it ends by `end`, or when it is dropped."""

    def __init__(self, visitor: Visitor) -> None:
        """Use `Visitor.stay`."""
        self._visitor: Visitor | None = visitor

    def end(self) -> None:
        """Say that no kernel queued from now on reads the bytes; once is enough."""
        visitor, self._visitor = self._visitor, None
        if visitor is not None:
            visitor._ended(self)

    def __del__(self) -> None:
        """A forward whose backward never comes must not keep the room."""
        self.end()


class Visitor:
    """Brings one block to the device and takes it away.

    Args:
        block: What travels.
        ring: Its lane carries the block too, so that copies come in the order in which they are
            needed; its ``copied_bytes`` count all that the lane carries.
        device: Where the block is computed.

    Attributes:
        num_copies: So far.
    """

    def __init__(self, block: Block, ring: BlockManager, *, device: torch.device) -> None:
        """Leave the block where it is."""
        self._block, self._ring, self._device = block, ring, device
        self._lane = ring.lane
        self._slot: Slot | None = None
        self._waited = False
        self._stays: weakref.WeakSet[Any] = weakref.WeakSet()
        self.num_copies = 0

    @property
    def present(self) -> bool:
        """Whether the bytes have room on the device."""
        return self._slot is not None

    def fetch(self) -> None:
        """Queue the copy, if the bytes are not there or on their way."""
        if self._slot is not None:
            return
        slot = Slot(self._block.num_bytes, self._device)
        # The memory may be what queued kernels still read under another name.
        self._lane.release(slot)
        self._block.copy_to(slot, self._lane)
        self._slot, self._waited = slot, False
        self.num_copies += 1
        self._ring.copied_bytes += self._block.num_bytes

    def stay(self) -> Stay:
        """Have the bytes on the device and the tensors pointed at them until the stay ends."""
        self.fetch()
        slot = self._slot
        assert slot is not None
        self._lane.wait(slot)
        self._waited = True
        self._block.point_at(slot.buffer)
        stay = Stay(self)
        self._stays.add(stay)
        return stay

    def leave(self) -> None:
        """Give the room back, whoever stays."""
        slot, self._slot = self._slot, None
        if slot is None:
            return
        self._block.point_at(None)
        if not self._waited:
            slot.drop_coming()  # nobody wants it: how it ended is nobody's error
            self._lane.wait(slot)
        self._lane.release(slot)

    def _ended(self, stay: Stay) -> None:
        self._stays.discard(stay)
        if not self._stays:
            self.leave()
