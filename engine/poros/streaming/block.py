"""One block's tensors in one flat host buffer, and the pointing of them at a device slot.

[Note: a block is only data]
A decoder layer's frozen part is a list of tensors: packed weights, absmax, nested absmax, offset,
norms, biases. Whoever owns the layer names where each tensor hangs (`FrozenTensor`); this module
copies all of them into one buffer and, from then on, points the holders at wherever the bytes
are. Forget one of these tensors and losses look plausible and are wrong: the loader's test counts.

[Note: the only assignment to a tensor's data]
Pointing a Parameter at other memory is invisible to autograd. It is safe here for one reason:
`block_function` never lets a graph that reads a slot outlive that slot's binding. Nothing else in
the engine may assign `.data` (tests/layout says so).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from poros.streaming.device_slots import CopyLane, Slot
from poros.streaming.file_reader import FilePart, FileReader
from poros.streaming.host_memory import HostBuffer
from poros.streaming.host_tier import PLAIN, FileBytes, HostTier, Segment

ALIGNMENT_BYTES = 256
"""What a fresh device allocation guarantees; cuBLASLt picks kernels by it."""


@dataclass(frozen=True)
class FrozenTensor:
    """A tensor that travels, and where it hangs: ``getattr(holder, attribute)``.

    Attributes:
        stored: Its bytes are still in a file, here; what hangs there has shape and type alone.
    """

    name: str
    holder: object
    attribute: str
    stored: FilePart | None = None

    @property
    def value(self) -> Tensor:
        """The tensor as it is now."""
        tensor: Tensor = getattr(self.holder, self.attribute)
        return tensor


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes lie in its block's flat buffer."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset_bytes: int
    num_bytes: int

    def view(self, buffer: Tensor) -> Tensor:
        """The tensor inside a flat uint8 buffer laid out like the block."""
        part = buffer[self.offset_bytes : self.offset_bytes + self.num_bytes]
        return part.view(self.dtype).view(self.shape)


class Block:
    """The tensors of one or more layers that travel together, flat on the host.

    Attributes:
        index: The block's position in the model, from 0.
        num_bytes: Size of the flat buffer, alignment gaps included.
        places: The layout of the buffer, one place a tensor.
        home: Views of `host`, one a tensor; none if the bytes are in files.
        tensors: The tensors as they are now: in a slot, or what holders have while away.
    """

    def __init__(
        self,
        index: int,
        frozen: Sequence[FrozenTensor],
        places: Sequence[Place],
        buffer: HostBuffer | None,
        device: torch.device,
        *,
        readable: bool = False,
        tier: HostTier = PLAIN,
        files: FileBytes | None = None,
    ) -> None:
        """Use `lay_out` or `zeros`."""
        self.index = index
        self.num_bytes = _end_bytes(places)
        self.places = tuple(places)
        self._frozen = tuple(frozen)
        self._buffer, self._tier, self._files = buffer, tier, files
        self.home = [place.view(buffer.tensor) for place in places] if buffer is not None else []
        self._away = self.home
        if not readable:
            self._away = [torch.empty(0, dtype=p.dtype, device=device) for p in places]
        self.tensors = self._away
        self._views = WeakTensorKeyDictionary()
        self._filled: Future[None] | None = None
        self._back: list[Tensor | None] = []

    @classmethod
    def lay_out(
        cls,
        index: int,
        frozen: Sequence[FrozenTensor],
        *,
        device: torch.device,
        readable: bool = False,
        reader: FileReader | None = None,
        tier: HostTier = PLAIN,
    ) -> Block:
        """Copy the tensors into a host buffer of exact size and leave placeholders on `device`.

        Args:
            index: The block's position in the model.
            frozen: Every tensor that travels; names are unique.
            device: Where the block will be computed.
            readable: Leave the host's views instead of placeholders: who reads a tensor between
                its visits (a checkpoint) finds it whole, on the CPU.
            reader: Reads, in the background, what is still in files: `wait_filled` before any use.
            tier: What kind of memory the bytes lie in, and how they get to the device from there.
        """
        places = list(_places((entry.name, entry.value) for entry in frozen))
        if tier.files is not None:
            for path in {entry.stored.file for entry in frozen if entry.stored is not None}:
                tier.files.hold(path)
            files = FileBytes(tier.files, _segments(frozen, places), _end_bytes(places))
            block = cls(index, frozen, places, None, device, tier=tier, files=files)
        else:
            buffer = HostBuffer(_end_bytes(places), device)
            block = cls(index, frozen, places, buffer, device, readable=readable, tier=tier)
            block._fill(buffer, reader)
        block.point_at(None)
        return block

    def _fill(self, buffer: HostBuffer, reader: FileReader | None) -> None:
        wanted = []
        for entry, place in zip(self._frozen, self.places, strict=True):
            view = place.view(buffer.tensor)
            if entry.stored is None:
                view.copy_(entry.value)
            else:
                wanted.append((entry.stored, view))
        pin = buffer.register if self._tier.pins else _nothing
        if wanted:
            assert reader is not None, "nobody reads what is in files"
            self._filled = reader.start(wanted, then=pin)
        else:
            pin()

    def wait_filled(self) -> None:
        """Wait until all bytes are there.

        Raises:
            PorosModelError: A file can't be read.
        """
        filled, self._filled = self._filled, None
        if filled is not None:
            filled.result()

    @classmethod
    def around(cls, index: int, frozen: FrozenTensor, *, device: torch.device) -> Block | None:
        """A block of one tensor in the memory that it has; None: that can't be a block's.

        Args:
            index: The block's position.
            frozen: On the host, as a load leaves the ends.
            device: Where the block will be computed.
        """
        buffer = HostBuffer.around(frozen.value, device)
        if buffer is None:
            return None
        buffer.register()
        [place] = _places([(frozen.name, frozen.value)])
        block = cls(index, [frozen], [place], buffer, device)
        block.point_at(None)
        return block

    @classmethod
    def zeros(
        cls, index: int, like: Iterable[tuple[str, Tensor]], *, device: torch.device
    ) -> Block:
        """A block of zeros, shaped like the named tensors; nobody holds them but `tensors`."""
        places = list(_places(like))
        buffer = HostBuffer(_end_bytes(places), device)  # pages of an anonymous mapping are zero
        buffer.register()
        return cls(index, (), places, buffer, device, readable=True)

    @property
    def host(self) -> Tensor:
        """The block's bytes, (num_bytes,) uint8; a copy of them if they are in files."""
        if self._buffer is not None:
            return self._buffer.tensor
        copied = torch.zeros(self.num_bytes, dtype=torch.uint8)
        self.fetch(0, copied)
        return copied

    @property
    def holders(self) -> list[object]:
        """What each tensor hangs in, in the order of `places`."""
        return [entry.holder for entry in self._frozen]

    @property
    def host_bytes(self) -> int:
        """What of the block lies in the host's memory."""
        return self.num_bytes if self._files is None else self._files.host_bytes

    @property
    def registered(self) -> bool:
        """Whether the host buffer is pinned for the device."""
        return self._buffer is not None and self._buffer.registered

    def fetch(self, begin_byte: int, target: Tensor) -> None:
        """Put the bytes from `begin_byte` on into `target`, (any,) uint8 on the host.

        Raises:
            PorosModelError: A file can't be read, or was changed.
        """
        if self._files is not None:
            self._files.fetch(begin_byte, target)
        else:
            target.copy_(self.host[begin_byte : begin_byte + target.numel()])

    def copy_to(self, slot: Slot, lane: CopyLane) -> None:
        """Queue the way of the bytes into a slot: straight, if the device can take them so."""
        staging = self._tier.staging
        if staging is None or self.registered:
            lane.copy(slot, self.host)
        else:
            lane.copy_staged(slot, self, staging)

    def tensor(self, name: str) -> Tensor:
        """The host's view of one tensor.

        Raises:
            KeyError: No tensor of that name travels with this block.
        """
        for place in self.places:
            if place.name == name:
                return place.view(self.host)
        raise KeyError(name)

    def point_at(self, buffer: Tensor | None) -> None:
        """Point `tensors` and every holder at `buffer`, laid out like `host`.

        Args:
            buffer: (at least num_bytes,) uint8 on the block's device; None: at empty
                placeholders, or at `home` if the block is readable.
        """
        self.tensors = self._tensors_in(buffer)
        for entry, tensor in zip(self._frozen, self.tensors, strict=bool(self._frozen)):
            setattr(entry.holder, entry.attribute, tensor)

    def put_back(self, tensors: Sequence[Tensor]) -> None:
        """Point every holder at these again, which `tensors` gave before."""
        self.tensors = list(tensors)
        for entry, tensor in zip(self._frozen, self.tensors, strict=True):
            setattr(entry.holder, entry.attribute, tensor)

    def bring_back(self, devices: Sequence[torch.device]) -> None:
        """Make ahead what `dissolve` gives the holders on devices; nothing changes yet.

        Args:
            devices: As `dissolve` gets them.
        """
        self._back = [
            None if device.type == "cpu" else home.to(device, copy=True)
            for home, device in zip(self.home, devices, strict=True)
        ]

    def stay(self) -> None:
        """Drop what `bring_back` made."""
        self._back = []

    def dissolve(self, devices: Sequence[torch.device]) -> None:
        """Give every holder a tensor of its own with the block's bytes; the block is done with.

        Args:
            devices: Where each tensor goes, in the order of `places`.
        """
        back = self._back or [None] * len(self.home)
        self._back = []
        for entry, home, device, made in zip(self._frozen, self.home, devices, back, strict=True):
            own = home.to(device, copy=True) if made is None else made
            setattr(entry.holder, entry.attribute, own)
        self._frozen, self._away, self.tensors = (), [], []
        self.close()

    def point_at_host(self) -> None:
        """Point every holder at an empty tensor on the host, until the next `point_at`."""
        for entry, place in zip(self._frozen, self.places, strict=bool(self._frozen)):
            setattr(entry.holder, entry.attribute, torch.empty(0, dtype=place.dtype))

    def close(self) -> None:
        """Unpin the host buffer."""
        if self._buffer is not None:
            self._buffer.close()

    def _tensors_in(self, buffer: Tensor | None) -> list[Tensor]:
        if buffer is None:
            return self._away
        # A ring has few slots, and making some thirty views anew at each visit would cost more
        # than the visit's kernel launches. Kept by the slot's tensor, they go when the ring goes.
        views: list[Tensor] | None = self._views.get(buffer)
        if views is None:
            with torch.inference_mode(False):  # else training could not use them after it
                views = [place.view(buffer) for place in self.places]
            self._views[buffer] = views
        return views


def drop(frozen: Iterable[FrozenTensor]) -> None:
    """Let go of tensors that are kept elsewhere: empty ones hang in their places."""
    for entry in frozen:
        setattr(entry.holder, entry.attribute, torch.empty(0, dtype=entry.value.dtype))


@contextlib.contextmanager
def seen_on_host(blocks: Sequence[Block]) -> Iterator[None]:
    """Let whoever asks where the blocks' tensors are find the host; nobody may read them."""
    for block in blocks:
        block.point_at_host()
    try:
        yield
    finally:
        for block in blocks:
            block.point_at(None)


@contextlib.contextmanager
def seen_whole(blocks: Sequence[Block]) -> Iterator[None]:
    """Let whoever reads the blocks' tensors find their bytes, on the host; slots stay as they are.

    Args:
        blocks: In memory on the host.
    """
    were = [block.tensors for block in blocks]
    for block in blocks:
        block.point_at(block.host)
    try:
        yield
    finally:
        for block, tensors in zip(blocks, were, strict=True):
            block.put_back(tensors)


def _segments(frozen: Sequence[FrozenTensor], places: Sequence[Place]) -> Iterator[Segment]:
    """What lies in files as parts of them, the rest (an offset, a converted norm) as a copy."""
    for entry, place in zip(frozen, places, strict=True):
        if place.num_bytes:
            kept = entry.value.detach().contiguous().view(-1).view(torch.uint8)
            yield place.offset_bytes, entry.stored or kept.clone()


def _nothing() -> None:
    """Pin nothing."""


def _end_bytes(places: Sequence[Place]) -> int:
    return places[-1].offset_bytes + places[-1].num_bytes if places else 0


def _places(named: Iterable[tuple[str, Tensor]]) -> Iterable[Place]:
    offset_bytes = 0
    for name, tensor in named:
        num_bytes = tensor.numel() * tensor.element_size()
        yield Place(name, tensor.dtype, tuple(tensor.shape), offset_bytes, num_bytes)
        offset_bytes += math.ceil(num_bytes / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
