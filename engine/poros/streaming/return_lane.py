"""The way back: bytes that changed in a slot are copied to the host, on a stream of their own.

[Note: who waits for a store]
A store reads a slot and writes a host buffer. So the next copy into that slot, the next copy from
that buffer, and kernels that write into the slot without a copy before them (`claim`) wait for it
on the device; only who reads the buffer on the host waits on the host (`settle`).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from poros.streaming.device_slots import CopyLane, CudaLane, HostLane, Slot


class ReturnLane(CopyLane, Protocol):
    """A lane that goes both ways."""

    def store(self, slot: Slot, host: Tensor) -> None:
        """Queue the copy of the slot's first bytes to `host`, after the kernels queued so far."""

    def claim(self, slot: Slot) -> None:
        """Let whoever waits for the slot write into it: its bytes need not come from the host."""

    def settle(self) -> None:
        """Wait on the host until every store has ended."""


def make_return_lane(device: torch.device) -> ReturnLane:
    """The two-way lane of a device."""
    return CudaReturnLane(device) if device.type == "cuda" else HostReturnLane()


class HostReturnLane(HostLane):
    """Copies, in both directions, that are done when the call returns."""

    def store(self, slot: Slot, host: Tensor) -> None:
        """Copy now."""
        host.copy_(slot.buffer[: host.numel()])

    def claim(self, slot: Slot) -> None:
        """Nothing is under way."""

    def settle(self) -> None:
        """Nothing is under way."""


class CudaReturnLane(CudaLane):
    """Two streams, one in each direction: the link carries both at once."""

    def __init__(self, device: torch.device) -> None:
        """Make the streams."""
        super().__init__(device)
        self._back = torch.cuda.Stream(device)
        self._written: dict[int, torch.cuda.Event] = {}
        self._last: torch.cuda.Event | None = None

    def copy(self, slot: Slot, host: Tensor) -> None:
        """Queue the copy behind the slot's readers, its own store, and the buffer's last one."""
        if slot.stored is not None:
            self._stream.wait_event(slot.stored)
        # Before this event, the buffer has the bytes of the step before.
        written = self._written.get(host.data_ptr())
        if written is not None:
            self._stream.wait_event(written)
        super().copy(slot, host)

    def store(self, slot: Slot, host: Tensor) -> None:
        """Queue the copy behind the kernels that are queued now."""
        self._back.wait_stream(torch.cuda.current_stream(self._device))
        slot.buffer.record_stream(self._back)
        with torch.cuda.stream(self._back):
            host.copy_(slot.buffer[: host.numel()], non_blocking=True)
            self._last = self._back.record_event()
        slot.stored = self._written[host.data_ptr()] = self._last

    def claim(self, slot: Slot) -> None:
        """The slot may be written once its former bytes are on the host."""
        slot.arrived = slot.stored

    def settle(self) -> None:
        """Wait for the last store; all of them run in one stream."""
        if self._last is not None:
            self._last.synchronize()
