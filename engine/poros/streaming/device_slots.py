"""Device buffers that blocks are copied into, and the order of copies and kernels between them.

On CUDA copies run on one stream of their own and nothing waits on the host: a copy waits for
`released` (the last kernel that read the slot), a kernel waits for `arrived`. On the CPU the same
calls copy at once.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future, wait
from typing import Protocol

import torch
from torch import Tensor

from poros import failpoints
from poros.streaming.staging import Staged, Staging


class Slot:
    """One device buffer and which block's bytes it holds (None: nobody's)."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Allocate (num_bytes,) uint8 on `device`."""
        failpoints.hit("train.room")
        self.buffer: Tensor = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        self.holds: int | None = None
        self.arrived: torch.cuda.Event | None = None
        self.released: torch.cuda.Event | None = None
        self.stored: torch.cuda.Event | None = None  # only where bytes go back (return_lane)
        self.coming: Future[None] | None = None  # only for bytes that are staged
        self.is_due = False  # nobody has waited for its present bytes yet; told to whoever watches

    def wait_queued(self) -> None:
        """Wait on the host until the copy into the slot is queued, if another thread does that.

        Raises:
            PorosModelError: The bytes could not be read; the slot then holds nobody's.
        """
        if self.coming is None:
            return
        try:
            self.coming.result()
        except BaseException:
            self.holds = None
            if self.coming.done():  # it keeps the error, whose frames keep all of the run
                self.coming = None
            raise
        self.coming = None

    def drop_coming(self) -> None:
        """Wait for a copy that nobody wants any more, however it ends."""
        coming, self.coming = self.coming, None
        if coming is not None and not coming.cancel():
            wait([coming])


class CopyLane(Protocol):
    """How bytes get into slots, and who waits for whom."""

    def keep(self, slot: Slot) -> None:
        """When the slot goes, its memory stays until the copies under way into it have ended."""

    def copy(self, slot: Slot, host: Tensor) -> None:
        """Queue the copy of `host` into the slot, after the slot's last reader."""

    def copy_staged(self, slot: Slot, staged: Staged, staging: Staging) -> None:
        """As `copy`, of bytes that pass through staging; another thread queues it."""

    def wait(self, slot: Slot) -> None:
        """Make the kernels queued from now on wait for the slot's bytes."""

    def release(self, slot: Slot) -> None:
        """Say that no kernel queued from now on reads the slot's present bytes."""

    def take_wait_s(self) -> float:
        """Seconds that the computation stood waiting for copies since the last call."""


def make_lane(device: torch.device) -> CopyLane:
    """The lane of a device."""
    return CudaLane(device) if device.type == "cuda" else HostLane()


class HostLane:
    """Copies that are done when the call returns."""

    def __init__(self) -> None:
        """Start with no time spent."""
        self._copy_s = 0.0

    def keep(self, slot: Slot) -> None:
        """No copy is ever under way."""

    def copy(self, slot: Slot, host: Tensor) -> None:
        """Copy now."""
        slot.drop_coming()
        failpoints.hit("train.copy")
        start_s = time.perf_counter()
        slot.buffer[: host.numel()].copy_(host)
        self._copy_s += time.perf_counter() - start_s

    def copy_staged(self, slot: Slot, staged: Staged, staging: Staging) -> None:
        """Copy in the staging's thread."""
        slot.drop_coming()
        buffer = slot.buffer

        def put(begin_byte: int, part: Tensor) -> None:
            if begin_byte == 0:
                failpoints.hit("train.copy")
            buffer[begin_byte : begin_byte + part.numel()].copy_(part)

        slot.coming = staging.start(staged, put)

    def wait(self, slot: Slot) -> None:
        """Only what is staged can be on its way."""
        start_s = time.perf_counter()
        slot.wait_queued()
        self._copy_s += time.perf_counter() - start_s

    def release(self, slot: Slot) -> None:
        """Kernels end before the host goes on."""

    def take_wait_s(self) -> float:
        """All copying is waiting here."""
        copy_s, self._copy_s = self._copy_s, 0.0
        return copy_s


class CudaLane:
    """Copies on one stream of their own, ordered by events."""

    def __init__(self, device: torch.device) -> None:
        """Make the copy stream."""
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def keep(self, slot: Slot) -> None:
        """Tell the allocator of the copy stream."""
        slot.buffer.record_stream(self._stream)

    def copy(self, slot: Slot, host: Tensor) -> None:
        """Queue the copy behind the last kernel that reads the slot."""
        slot.drop_coming()
        failpoints.hit("train.copy")
        # Before this event, copying would overwrite weights that queued kernels still read.
        if slot.released is not None:
            self._stream.wait_event(slot.released)
        with torch.cuda.stream(self._stream):
            slot.buffer[: host.numel()].copy_(host, non_blocking=True)
            slot.arrived = self._stream.record_event()

    def copy_staged(self, slot: Slot, staged: Staged, staging: Staging) -> None:
        """Have each piece's copy queued as `copy` does it, by the staging's thread."""
        slot.drop_coming()
        released, buffer = slot.released, slot.buffer

        def put(begin_byte: int, part: Tensor) -> torch.cuda.Event:
            if begin_byte == 0:
                failpoints.hit("train.copy")
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                if released is not None and begin_byte == 0:
                    self._stream.wait_event(released)
                target = buffer[begin_byte : begin_byte + part.numel()]
                target.copy_(part, non_blocking=True)
                slot.arrived = self._stream.record_event()
            return slot.arrived

        slot.coming = staging.start(staged, put)

    def wait(self, slot: Slot) -> None:
        """Let the compute stream stand at the slot's arrival, and time how long it stands."""
        if slot.arrived is None and slot.coming is None:
            return
        stream = torch.cuda.current_stream(self._device)
        before = stream.record_event(torch.cuda.Event(enable_timing=True))
        slot.wait_queued()  # after that event: the stream may have to wait for the host too
        assert slot.arrived is not None, "a block without bytes was staged"
        stream.wait_event(slot.arrived)
        self._waits.append((before, stream.record_event(torch.cuda.Event(enable_timing=True))))

    def release(self, slot: Slot) -> None:
        """Mark the end of the kernels queued so far."""
        slot.released = torch.cuda.current_stream(self._device).record_event()

    def take_wait_s(self) -> float:
        """Sum the stands since the last call. Call it where the host has already synchronised."""
        waits, self._waits = self._waits, []
        total_ms = 0.0
        for before, after in waits:
            with contextlib.suppress(RuntimeError):  # not finished yet: not a wait of this step
                total_ms += before.elapsed_time(after)
        return total_ms / 1000
