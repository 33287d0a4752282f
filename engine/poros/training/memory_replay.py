"""What the device's allocator held at a step's peak, from torch's own record of its allocations.

Pure functions over the dictionaries of `torch.cuda.memory._snapshot()`: the segments and their
parts before the step, and the trace of the step.

[Note: sizes]
The trace has the sizes that were asked for; torch counts what was taken. In the small pool (up to
1 MiB) and with expandable segments that is the request rounded up to 512 bytes. Elsewhere a free
part is cut only if more than 1 MiB would be left of it, so its size must be known: the replay keeps
the free parts as the allocator does. Then the sum is torch's own figure to the byte.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Frames = Sequence[Mapping[str, Any]]

QUANTUM_BYTES = 512
SMALL_BYTES = 2**20
"""The largest request of the small pool; also what may be left uncut of a part of the large one."""

BEFORE = -1
"""The `order` of what was there before the trace began."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory in use.

    Attributes:
        address: Of its first byte.
        num_bytes: What the allocator took for it.
        order: Which allocation of the trace it is, from 0; `BEFORE`: none.
        frames: Python's stack when it was made, innermost first.
    """

    address: int
    num_bytes: int
    order: int
    frames: Frames


@dataclass(frozen=True, slots=True)
class Peak:
    """One moment.

    Attributes:
        allocations: What was in use.
        awaiting: What was freed while another stream might still read it: not yet of use again.
        reserved_bytes: What the allocator had from the device.
        last: The allocation that made the peak; None: it was there before the trace.
        asked_bytes: What could not be had, if this is the moment at which memory ran out.
        max_active_bytes: The highest sum of both lists in the whole trace.
        num_guessed: Allocations whose size had to be taken for the rounded request.
    """

    allocations: tuple[Allocation, ...]
    awaiting: tuple[Allocation, ...]
    reserved_bytes: int
    last: Allocation | None
    asked_bytes: int
    max_active_bytes: int
    num_guessed: int

    @property
    def num_bytes(self) -> int:
        """In use at this moment."""
        return sum(allocation.num_bytes for allocation in self.allocations)


def find_peak(
    segments: Sequence[Mapping[str, Any]],
    trace: Sequence[Mapping[str, Any]],
    *,
    ran_out: bool = False,
) -> Peak:
    """The moment of a trace at which most was in use, or the last one at which memory ran out.

    Args:
        segments: Of a snapshot at the trace's beginning.
        trace: One device's entries, in their order.
        ran_out: The step ended because memory ran out.
    """
    whole = Replay(segments)
    peak_bytes, end = whole.allocated_bytes, 0
    max_active_bytes = whole.active_bytes
    asked_bytes = 0
    for position, entry in enumerate(trace):
        whole.take(entry)
        max_active_bytes = max(max_active_bytes, whole.active_bytes)
        if ran_out and entry["action"] == "oom":
            end, asked_bytes = position + 1, int(entry["size"])
        elif not asked_bytes and whole.allocated_bytes > peak_bytes:
            peak_bytes, end = whole.allocated_bytes, position + 1
    replay = Replay(segments)
    for entry in trace[:end]:
        replay.take(entry)
    return Peak(
        allocations=tuple(replay.live.values()),
        awaiting=tuple(replay.awaiting.values()),
        reserved_bytes=replay.reserved_bytes,
        last=replay.last,
        asked_bytes=asked_bytes,
        max_active_bytes=max_active_bytes,
        num_guessed=replay.num_guessed,
    )


class Replay:
    """The allocator's state, entry by entry.

    Attributes:
        live: What is in use, by address.
        awaiting: What is freed but not yet of use again, by address.
        allocated_bytes: Sum over `live`.
        active_bytes: Sum over both.
        reserved_bytes: Had from the device.
        last: The newest allocation of the trace.
        num_allocations: In the trace so far.
        num_guessed: As in `Peak`.
    """

    def __init__(self, segments: Sequence[Mapping[str, Any]]) -> None:
        """Begin with a snapshot's segments."""
        self.live: dict[int, Allocation] = {}
        self.awaiting: dict[int, Allocation] = {}
        self.allocated_bytes = self.active_bytes = self.reserved_bytes = 0
        self.last: Allocation | None = None
        self.num_allocations = self.num_guessed = 0
        self._expandable = any(segment.get("is_expandable") for segment in segments)
        self._free = FreeParts()
        for segment in segments:
            self.reserved_bytes += segment["total_size"]
            if not segment.get("is_expandable"):
                self._free.bounds.add(segment["address"])
            address = segment["address"]
            for part in segment["blocks"]:
                # Older torch has no addresses here; the parts lie one behind the other.
                address = part.get("address", address)
                self._begin_with(address, part)
                address += part["size"]

    def take(self, entry: Mapping[str, Any]) -> None:
        """Go on by one entry of the trace."""
        action = entry["action"]
        if action == "alloc":
            self._allocate(entry)
        elif action == "free_requested":
            self._release(entry["addr"])
        elif action == "free_completed":
            self._complete(entry["addr"])
        elif action in ("segment_alloc", "segment_map"):
            self._expandable |= action == "segment_map"
            self.reserved_bytes += entry["size"]
            if action == "segment_alloc":
                self._free.bounds.add(entry["addr"])
            self._free.add(entry["addr"], entry["size"])
        elif action in ("segment_free", "segment_unmap"):
            self.reserved_bytes -= entry["size"]
            self._free.remove(entry["addr"], entry["size"])
            self._free.bounds.discard(entry["addr"])

    def _begin_with(self, address: int, part: Mapping[str, Any]) -> None:
        num_bytes = part["size"]
        if part["state"] == "inactive":
            self._free.add(address, num_bytes)
            return
        allocation = Allocation(address, num_bytes, BEFORE, part.get("frames", ()))
        self.active_bytes += num_bytes
        if part["state"] == "active_allocated":
            self.live[address] = allocation
            self.allocated_bytes += num_bytes
        else:
            self.awaiting[address] = allocation

    def _allocate(self, entry: Mapping[str, Any]) -> None:
        address, num_bytes = entry["addr"], rounded(entry["size"])
        num_bytes = self._free.cut(address, num_bytes, self._rest(entry["size"]))
        if num_bytes < 0:
            self.num_guessed += 1
            num_bytes = rounded(entry["size"])
        self.last = Allocation(address, num_bytes, self.num_allocations, entry.get("frames", ()))
        self.num_allocations += 1
        self.live[address] = self.last
        self.allocated_bytes += num_bytes
        self.active_bytes += num_bytes

    def _rest(self, requested_bytes: int) -> int:
        """The least that is cut off a free part and kept for others."""
        if self._expandable or requested_bytes <= SMALL_BYTES:
            return QUANTUM_BYTES
        return SMALL_BYTES + 1

    def _release(self, address: int) -> None:
        allocation = self.live.pop(address, None)
        if allocation is not None:
            self.allocated_bytes -= allocation.num_bytes
            self.awaiting[address] = allocation

    def _complete(self, address: int) -> None:
        allocation = self.awaiting.pop(address, None)
        if allocation is not None:
            self.active_bytes -= allocation.num_bytes
            self._free.add(address, allocation.num_bytes)


def rounded(requested_bytes: int) -> int:
    """What the allocator looks for when so much is asked for."""
    return max(-(-requested_bytes // QUANTUM_BYTES), 1) * QUANTUM_BYTES


@dataclass
class FreeParts:
    """Free parts of the allocator's segments; neighbours are one, but not across `bounds`.

    Attributes:
        sizes: Bytes by address.
        bounds: Addresses at which a segment of its own begins.
    """

    sizes: dict[int, int] = field(default_factory=dict)
    bounds: set[int] = field(default_factory=set)
    _starts: dict[int, int] = field(default_factory=dict)
    """Where the part begins that ends at an address."""

    def add(self, address: int, num_bytes: int) -> None:
        """Take a part back."""
        end = address + num_bytes
        if end in self.sizes and end not in self.bounds:
            end += self._pop(end)
        if address in self._starts and address not in self.bounds:
            start = self._starts[address]
            self._pop(start)
            address = start
        self._put(address, end - address)

    def cut(self, address: int, num_bytes: int, least_rest: int) -> int:
        """Use a part from its beginning; the bytes used, or -1 if none of that size lies there."""
        size = self.sizes.get(address)
        if size is None or size < num_bytes:
            return -1
        self._pop(address)
        if size - num_bytes < least_rest:
            return size
        self._put(address + num_bytes, size - num_bytes)
        return num_bytes

    def remove(self, address: int, num_bytes: int) -> None:
        """Give memory back to the device: a part, or a piece of one."""
        for start in sorted(self.sizes):
            end = start + self.sizes[start]
            if start <= address and address + num_bytes <= end:
                self._pop(start)
                self._put(start, address - start)
                self._put(address + num_bytes, end - address - num_bytes)
                return

    def _put(self, address: int, num_bytes: int) -> None:
        if num_bytes:
            self.sizes[address] = num_bytes
            self._starts[address + num_bytes] = address

    def _pop(self, address: int) -> int:
        num_bytes = self.sizes.pop(address)
        del self._starts[address + num_bytes]
        return num_bytes


class Notes:
    """Which memory was known to be what, and when: an address is used again and again."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._notes: dict[int, list[tuple[int, str]]] = {}

    def add(self, name: str, address: int, num_allocations: int) -> None:
        """Say what lies at an address after so many allocations of the trace."""
        self._notes.setdefault(address, []).append((num_allocations, name))

    def names(
        self, allocations: Sequence[Allocation], trace: Sequence[Mapping[str, Any]]
    ) -> list[str | None]:
        """What each allocation was noted as first, while it lived; None: never."""
        orders: dict[int, list[int]] = {}
        order = 0
        for entry in trace:
            if entry["action"] == "alloc":
                orders.setdefault(entry["addr"], []).append(order)
                order += 1
        return [self._name(allocation, orders) for allocation in allocations]

    def _name(self, allocation: Allocation, orders: Mapping[int, Sequence[int]]) -> str | None:
        later = orders.get(allocation.address, ())
        k = bisect.bisect_right(later, allocation.order)
        end = later[k] if k < len(later) else float("inf")
        for num_allocations, name in self._notes.get(allocation.address, ()):
            if allocation.order < num_allocations <= end:
                return name
        return None
