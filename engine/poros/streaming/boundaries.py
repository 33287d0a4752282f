"""Hidden states between layers, on the host from a layer's forward until its backward.

A layer's recompute needs what went into the layer. Kept on the device, that is one tensor of
(batch, tokens, width) a layer: at long sequences more than all else. Here it goes to a pinned
buffer while its layer computes, and comes back one layer ahead of its backward.

[Note: free when the layer is done]
The copy to the host reads memory that the model lets go of when the layer returns. So the compute
stream waits for that copy before the layer returns, which costs nothing (a layer computes longer
than its input travels), and the allocator may hand the memory to the next kernel. Telling it of
the copy's stream instead would keep each boundary's memory until the host next looks, and the host
is many layers ahead.

[Note: kept as long as autograd keeps a tensor]
What autograd saves in place of the hidden states is an empty tensor (`Boundary.token`) that holds
the boundary. So a graph that is dropped, differentiated, or retained does with the host's buffer
what it would have done with the hidden states.

[Note: a buffer is given to the next one]
All that was queued on a buffer is behind something that the compute stream waits for before the
boundary is dropped, and each store waits for the compute stream. So buffers are reused at once, by
other layers, micro-batches and steps, and nobody waits on the host.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from poros.memory_plan import MemoryPlan
from poros.streaming.block_manager import BlockManager
from poros.streaming.device_slots import Slot
from poros.streaming.host_memory import HostBuffer


class BackLane(Protocol):
    """How bytes get to the host."""

    def store(self, source: Tensor, host: Tensor) -> Any:
        """Queue the copy behind the kernels queued so far; a ticket for `wait`."""

    def wait(self, ticket: Any) -> None:
        """Make the kernels queued from now on wait until the copy has read its source."""


class HostBackLane:
    """Copies that are done when the call returns."""

    def store(self, source: Tensor, host: Tensor) -> None:
        """Copy now."""
        host.copy_(source)

    def wait(self, ticket: None) -> None:
        """Nothing is under way."""


class CudaBackLane:
    """A stream of its own: the link carries both directions at once."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream."""
        self._device, self._stream = device, torch.cuda.Stream(device)

    def store(self, source: Tensor, host: Tensor) -> torch.cuda.Event:
        """Queue the copy behind the kernels that are queued now."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            host.copy_(source, non_blocking=True)
            event: torch.cuda.Event = self._stream.record_event()
        return event

    def wait(self, ticket: torch.cuda.Event) -> None:
        """Let the compute stream stand until the copy has ended."""
        torch.cuda.current_stream(self._device).wait_event(ticket)


class Boundary:
    """One layer's hidden states, away from the device; dropped, it gives its buffer back."""

    def __init__(
        self, owner: Boundaries, hidden: Tensor, buffer: HostBuffer, before: Boundary | None
    ) -> None:
        """Use `Boundaries.leaving`."""
        self._owner, self._buffer = owner, buffer
        self._slot: Slot | None = None
        self._before = None if before is None else weakref.ref(before)
        self._dtype, self._shape, self._stride = hidden.dtype, hidden.shape, hidden.stride()
        self.num_bytes = hidden.numel() * hidden.element_size()

    @property
    def host(self) -> Tensor:
        """(num_bytes,) uint8."""
        return self._buffer.tensor[: self.num_bytes]

    @property
    def token(self) -> Tensor:
        """An empty tensor that holds the boundary: what autograd saves."""
        token = torch.empty(0)
        token.__dict__["boundary"] = self
        return token

    def fetch(self) -> None:
        """Queue the copy back, if it isn't under way."""
        if self._slot is None:
            self._slot = self._owner.bring(self)

    def fetch_before(self) -> None:
        """Queue the way back of the boundary whose backward comes next, if there is one."""
        before = self._before() if self._before is not None else None
        if before is not None:
            before.fetch()

    def arrive(self) -> Tensor:
        """The hidden states on the device, in memory of their own, as they left it."""
        self.fetch()
        slot, self._slot = self._slot, None
        assert slot is not None
        self._owner.lane.wait(slot)
        hidden: Tensor = slot.buffer.view(self._dtype).as_strided(self._shape, self._stride)
        return hidden

    def __del__(self) -> None:
        """Give the buffer to the next boundary, and the room on the device back."""
        if self._slot is not None:
            self._owner.lane.wait(self._slot)  # else kernels could get its memory too early
        self._owner.take_back(self._buffer)


class Boundaries:
    """The hidden states of all layers, and the buffers that they lie in.

    Args:
        ring: Its lane brings them back, so that copies come in the order in which they are
            needed; its ``copied_bytes`` count all that the lane carries.
        device: Where the layers compute.
        back: What carries them to the host; None: what the device has.

    Attributes:
        lane: The ring's.
        num_stores: So far.
        num_fetches: So far.
        host_bytes: Of all buffers, used or not.
    """

    def __init__(
        self, ring: BlockManager, *, device: torch.device, back: BackLane | None = None
    ) -> None:
        """Take no memory yet."""
        self._ring, self._device, self.lane = ring, device, ring.lane
        cuda = device.type == "cuda"
        self._back: BackLane = back or (CudaBackLane(device) if cuda else HostBackLane())
        self._free: list[HostBuffer] = []
        self._last: weakref.ref[Boundary] | None = None
        self.num_stores = self.num_fetches = self.host_bytes = 0

    @contextlib.contextmanager
    def leaving(self, hidden: Tensor) -> Iterator[Boundary | None]:
        """Copy hidden states to the host beside what is computed in this context.

        Args:
            hidden: What a layer is called with; on its device until the context ends.

        Yields:
            Where they are; None for a tensor that is a part of another one, which stays.
        """
        if not self._travels(hidden):
            yield None
            return
        num_bytes = hidden.numel() * hidden.element_size()
        before = self._last() if self._last is not None else None
        boundary = Boundary(self, hidden, self._take(num_bytes), before)
        flat = hidden.detach().as_strided((hidden.numel(),), (1,)).view(torch.uint8)
        ticket = self._back.store(flat, boundary.host)
        self._last = weakref.ref(boundary)
        self.num_stores += 1
        try:
            yield boundary
        finally:
            self._back.wait(ticket)

    def bring(self, boundary: Boundary) -> Slot:
        """Queue the copy of a boundary into new room on the device."""
        slot = Slot(boundary.num_bytes, self._device)
        self.lane.release(slot)  # the memory may be what queued kernels still read
        self.lane.copy(slot, boundary.host)
        self.num_fetches += 1
        self._ring.copied_bytes += boundary.num_bytes
        return slot

    def take_back(self, buffer: HostBuffer) -> None:
        """Let the next boundary have the buffer."""
        self._free.append(buffer)

    def _travels(self, hidden: Tensor) -> bool:
        whole = hidden.is_contiguous() and hidden.storage_offset() == 0
        return whole and hidden.numel() > 0 and hidden.device.type == self._device.type

    def _take(self, num_bytes: int) -> HostBuffer:
        sizes = [(buffer.tensor.numel(), k) for k, buffer in enumerate(self._free)]
        fitting = [found for found in sizes if found[0] >= num_bytes]
        if fitting:
            return self._free.pop(min(fitting)[1])
        if sizes:  # a longer batch: its buffers replace shorter ones
            size, k = min(sizes)
            del self._free[k]
            self.host_bytes -= size
        try:
            buffer = HostBuffer(num_bytes, self._device)
        except OSError as error:
            raise MemoryError(f"no {num_bytes} bytes for hidden states: {error}") from error
        buffer.register()
        self.host_bytes += num_bytes
        return buffer


def boundaries_of(plan: MemoryPlan, ring: BlockManager, device: torch.device) -> Boundaries | None:
    """The buffers of a ring's layers, if the plan has boundaries on the host."""
    return Boundaries(ring, device=device) if plan.boundaries_on_host else None


def boundary_of(token: Tensor) -> Boundary:
    """The boundary that a saved token holds.

    Raises:
        RuntimeError: Hooks on saved tensors put something else in its place.
    """
    boundary: Boundary | None = token.__dict__.get("boundary")
    if boundary is None:
        raise RuntimeError(
            "hooks on saved tensors can't be used around a layer whose hidden states wait on the "
            "host: they are saved there already"
        )
    return boundary
