"""The ring: which block lies in which slot, what to load ahead, when a slot may be overwritten.

Three verbs: `load` queues a copy, `bind` waits for it and points the weights at the slot, and
binding the next block releases the one before. Frozen bytes are never copied back.

A resident block has a place of its own: it is copied once, at its first visit, and the ring goes
on as if it were not there. The other blocks are the travelling ones.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from poros.streaming.block import Block
from poros.streaming.device_slots import CopyLane, Slot, make_lane

POISON = 0xFF
FEWEST_SLOTS = 2


class BlockManager:
    """Streams blocks through `num_slots` device buffers.

    Args:
        blocks: All blocks of the model, in order.
        device: Where they are computed.
        num_slots: Travelling blocks on the device at once; at least 2, one computing and one
            arriving. No more are made than blocks travel.
        prefetch: Load ahead in the direction of travel.
        poison: Overwrite a slot when it is released, so that reading it late shows (debugging).
        lane: How bytes move; None: a lane of the ring's own.
        resident: Indices of the blocks that have a place of their own.

    Attributes:
        slot_bytes: Size of a slot: the largest travelling block; 0 if none travels.
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
        resident: Collection[int] = (),
    ) -> None:
        """Allocate slots and places."""
        if num_slots < FEWEST_SLOTS:
            raise ValueError(f"num_slots is {num_slots}: one computes while one arrives, so 2")
        self._blocks = blocks
        if not set(resident) <= set(range(len(blocks))):
            raise ValueError(f"resident is {sorted(resident)}, there are {len(blocks)} blocks")
        self._lane: CopyLane = lane or make_lane(device)
        self._device = device
        self._places = {index: self._new_slot(blocks[index].num_bytes) for index in resident}
        self._travellers = [k for k in range(len(blocks)) if k not in self._places]
        self.slot_bytes = max((blocks[k].num_bytes for k in self._travellers), default=0)
        num_slots = min(num_slots, len(self._travellers))
        self._slots = [self._new_slot(self.slot_bytes) for _ in range(num_slots)]
        self._bound: Slot | None = None
        self._prefetch = prefetch
        self._poison = poison
        self.num_copies = 0
        self.copied_bytes = 0
        self._computing: int | None = None
        self._direction = 0
        self._arriving: int | None = None
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

    @property
    def place_buffers(self) -> list[Tensor]:
        """The resident blocks' memory on the device, each (num_bytes,) uint8."""
        return [place.buffer for place in self._places.values()]

    @property
    def resident(self) -> tuple[int, ...]:
        """Indices of the blocks that have a place of their own, ascending."""
        return tuple(sorted(self._places))

    def shrink(self, *, num_slots: int, resident: Collection[int]) -> None:
        """Give room back between two steps: keep no more slots and places than these.

        What leaves its place travels from now on.

        Raises:
            ValueError: A block would become resident.
        """
        if not set(resident) <= self._places.keys():
            raise ValueError(f"{sorted(resident)} are to stay resident, {self.resident} are")
        self.forget()
        self._places = {k: place for k, place in self._places.items() if k in resident}
        self._travellers = [k for k in range(len(self._blocks)) if k not in self._places]
        slot_bytes = max((self._blocks[k].num_bytes for k in self._travellers), default=0)
        num_slots = min(num_slots, len(self._travellers))
        if slot_bytes > self.slot_bytes:
            self.slot_bytes, self._slots = slot_bytes, []  # none of them holds the largest block
        self._slots = self._slots[:num_slots]
        self.take_up(num_slots)  # where hardly a block travelled

    def lay_down(self) -> int:
        """Give the slots' memory back, until `take_up`: nothing may be bound meanwhile.

        Returns:
            How many there were.
        """
        self.forget()
        num_slots, self._slots = len(self._slots), []
        return num_slots

    def take_up(self, num_slots: int) -> None:
        """Have so many slots again."""
        while len(self._slots) < num_slots:
            self._slots.append(self._new_slot(self.slot_bytes))

    def bind(self, index: int, *, direction: int = 1, wrap: bool = False) -> None:
        """Point block `index` at its bytes on the device; release the block bound before.

        Args:
            index: The block that is computed next.
            direction: 1 in a forward pass, -1 in a backward pass: what is loaded ahead.
            wrap: The first block follows the last one (a forward pass without a backward).
        """
        self._computing, self._direction = index, direction
        ahead = self._ahead(index, direction, wrap=wrap)
        if index in self._places:
            self._release()
            self._settle_in(index)
        elif self._bound is None or self._bound.holds != index:
            self._release()
            slot = self._load(index, keep=(index, *ahead))
            self._lane.wait(slot)
            slot.is_due = False
            self._blocks[index].point_at(slot.buffer)
            self._bound = slot
        for following in ahead:
            self._load(following, keep=(index, *ahead))
        last = self._travellers[-1] if self._travellers else -1
        if direction == 1 and not wrap and max((index, *ahead)) >= last:
            self.when_idle()

    def rest(self) -> None:
        """Release the bound block without binding another: its slot still holds it."""
        self._release()

    def forget(self) -> None:
        """Drop what is on the device: call it after anything else wrote into a block or a slot."""
        self._release()
        self._computing = self._arriving = None
        for slot in self._slots:
            slot.holds = None
            slot.drop_coming()  # its thread would keep the slot's memory, if that is to go
        for index, place in self._places.items():
            if place.holds is not None:
                self._blocks[index].point_at(None)
                self._lane.release(place)
                place.holds = None

    def seen(self) -> tuple[str, int | None, int]:
        """Where the blocks are, for whoever watches: from any thread, and a moment off.

        The host runs ahead of a GPU: it is told what is queued, since asking would cost.

        Returns:
            One character a block (``r`` is in its own place, ``d`` in a slot, ``a`` arriving,
            ``c`` computed, ``.`` away), the computed one's index, and 1 in a forward pass or -1 in
            a backward pass.
        """
        marks = ["."] * len(self._blocks)
        for slot in self._slots:
            if (index := slot.holds) is not None:
                marks[index] = "a" if slot.is_due else "d"
        for index, place in self._places.items():
            if place.holds is not None:
                marks[index] = "r"
        arriving, computing = self._arriving, self._computing
        if computing is not None:
            marks[computing] = "c"
        if arriving is not None:
            marks[arriving] = "a"
        return "".join(marks), computing, self._direction

    def take_copy_wait_s(self) -> float:
        """Seconds the computation stood waiting for bytes since the last call."""
        return self._lane.take_wait_s()

    def _ahead(self, index: int, direction: int, *, wrap: bool) -> tuple[int, ...]:
        if not self._prefetch:
            return ()
        coming = self._travellers
        # While a resident block computes, no slot does: there is room for one more.
        num_ahead = self.num_slots - (index not in self._places)
        if direction == 1:
            first = bisect.bisect_right(coming, index)
            positions = range(first, first + num_ahead)
        else:
            first = bisect.bisect_left(coming, index) - 1
            positions = range(first, first - num_ahead, -1)
        if wrap:
            return tuple(coming[position % len(coming)] for position in positions)
        # At the turn-around nothing is loaded: the last blocks stay for the way back, and the
        # first ones for the next step.
        return tuple(coming[position] for position in positions if 0 <= position < len(coming))

    def _new_slot(self, num_bytes: int) -> Slot:
        slot = Slot(num_bytes, self._device)
        self._lane.keep(slot)
        self._lane.release(slot)
        return slot

    def _settle_in(self, index: int) -> None:
        """Bring a resident block to its place, once; its tensors then stay pointed at it."""
        place = self._places[index]
        if place.holds is not None:
            return
        self._fill(place, index)
        self._lane.wait(place)
        self._blocks[index].point_at(place.buffer)
        place.holds = index

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
        self._arriving = index
        self._blocks[index].copy_to(slot, self._lane)
        self._arriving = None
        slot.is_due = slot.arrived is not None or slot.coming is not None
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
