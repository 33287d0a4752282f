"""The ring: which block lies in which slot, what to load ahead, when a slot may be overwritten.

Three verbs: `load` queues a copy, `bind` waits for it and points the weights at the slot, and
binding the next block releases the one before. Frozen bytes are never copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from poros.streaming.block import Block
from poros.streaming.device_slots import CopyLane, Slot, make_lane

POISON = 0xFF


class BlockManager:
    """Streams blocks through `num_slots` device buffers.

    Args:
        blocks: All blocks of the model, in order.
        device: Where they are computed.
        num_slots: Blocks on the device at once; at least 2, one computing and one arriving.
        prefetch: Load ahead in the direction of travel.
        poison: Overwrite a slot when it is released, so that reading it late shows (debugging).
        lane: How bytes move; None: a lane of the ring's own.

    Attributes:
        when_idle: Called in a forward pass that a backward follows, at each bind after which no
            block is left to load: the link has nothing to carry until the turn-around.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        device: torch.device,
        num_slots: int = 2,
        prefetch: bool = True,
        poison: bool = False,
        lane: CopyLane | None = None,
    ) -> None:
        """Allocate the slots."""
        if num_slots < 2:
            raise ValueError(f"num_slots is {num_slots}: one computes while one arrives, so 2")
        self._blocks = blocks
        self._lane: CopyLane = lane or make_lane(device)
        self.slot_bytes = max(block.num_bytes for block in blocks)
        num_slots = min(num_slots, max(len(blocks), 2))
        self._slots = [Slot(self.slot_bytes, device) for _ in range(num_slots)]
        for slot in self._slots:
            self._lane.keep(slot)
            self._lane.release(slot)
        self._bound: Slot | None = None
        self._prefetch = prefetch
        self._poison = poison
        self.num_copies = 0
        self.copied_bytes = 0
        self.when_idle: Callable[[], None] = _nothing

    @property
    def lane(self) -> CopyLane:
        """What the ring copies by; other copies that are needed in turn go the same way."""
        return self._lane

    @property
    def num_slots(self) -> int:
        """Device buffers in the ring."""
        return len(self._slots)

    @property
    def buffers(self) -> list[Tensor]:
        """The slots' memory on the device, each (slot_bytes,) uint8."""
        return [slot.buffer for slot in self._slots]

    def bind(self, index: int, *, direction: int = 1, wrap: bool = False) -> None:
        """Point block `index` at its bytes on the device; release the block bound before.

        Args:
            index: The block that is computed next.
            direction: 1 in a forward pass, -1 in a backward pass: what is loaded ahead.
            wrap: The first block follows the last one (a forward pass without a backward).
        """
        ahead = self._ahead(index, direction, wrap=wrap)
        if self._bound is None or self._bound.holds != index:
            self._release()
            slot = self._load(index, keep=(index, *ahead))
            self._lane.wait(slot)
            self._blocks[index].point_at(slot.buffer)
            self._bound = slot
        for following in ahead:
            self._load(following, keep=(index, *ahead))
        if direction == 1 and not wrap and max((index, *ahead)) == len(self._blocks) - 1:
            self.when_idle()

    def forget(self) -> None:
        """Drop what the slots hold: call it after anything else wrote into a block or a slot."""
        self._release()
        for slot in self._slots:
            slot.holds = None

    def take_copy_wait_s(self) -> float:
        """Seconds the computation stood waiting for bytes since the last call."""
        return self._lane.take_wait_s()

    def _ahead(self, index: int, direction: int, *, wrap: bool) -> tuple[int, ...]:
        if not self._prefetch:
            return ()
        num_blocks = len(self._blocks)
        steps = [index + direction * k for k in range(1, min(self.num_slots, num_blocks))]
        if wrap:
            return tuple(step % num_blocks for step in steps)
        # At the turn-around nothing is loaded: the last blocks stay for the way back, and the
        # first ones for the next step.
        return tuple(step for step in steps if 0 <= step < num_blocks)

    def _load(self, index: int, *, keep: tuple[int, ...]) -> Slot:
        for slot in self._slots:
            if slot.holds == index:
                return slot
        slot = max(
            (s for s in self._slots if s is not self._bound and s.holds not in keep),
            key=lambda s: float("inf") if s.holds is None else abs(s.holds - index),
        )
        slot.holds = None  # until the copy is queued: an interrupt may come between
        self._fill(slot, index)
        slot.holds = index
        return slot

    def _fill(self, slot: Slot, index: int) -> None:
        self._lane.copy(slot, self._blocks[index].host)
        self.num_copies += 1
        self.copied_bytes += self._blocks[index].num_bytes

    def _release(self) -> None:
        slot, self._bound = self._bound, None
        if slot is None or slot.holds is None:
            return
        # Placeholders make a use outside a binding fail by its shape instead of reading another
        # block's bytes.
        self._blocks[slot.holds].point_at(None)
        if self._poison:
            slot.buffer.fill_(POISON)
            slot.holds = None
        self._lane.release(slot)


def _nothing() -> None:
    """Nobody uses the link while the ring does not."""
