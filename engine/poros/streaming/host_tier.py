"""What kind of place a block's bytes have while they are away, and their way from there.

Registered memory is copied from without the host's help; pageable memory and files go through
staging. No tier changes a byte.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from poros.streaming.file_reader import FilePart, FileReader
from poros.streaming.staging import Staging


@dataclass(frozen=True)
class HostTier:
    """How blocks are kept.

    Attributes:
        pins: Register their memory, where the device has such a notion and the system allows it.
        staging: What bytes that aren't registered pass through; None: they are copied straight.
        files: Reads them at each visit from the files that they are in; None: they are in memory.
    """

    pins: bool = True
    staging: Staging | None = None
    files: FileReader | None = None


PLAIN = HostTier()


def make_tier(name: str, device: torch.device) -> HostTier:
    """A tier by its name: ``registered``, ``pageable`` or ``disk``."""
    if name == "registered":
        # Staging is for what the system refuses to register; a CPU needs none.
        return HostTier(staging=Staging(device) if device.type == "cuda" else None)
    if name == "pageable":
        return HostTier(pins=False, staging=Staging(device))
    assert name == "disk", name
    return HostTier(pins=False, staging=Staging(device), files=FileReader())


Segment = tuple[int, FilePart | Tensor]
"""An offset in a block's buffer, and what lies there: a part of a file, or bytes in memory."""


class FileBytes:
    """A block's bytes where they are stored.

    Args:
        reader: Has the files open: one that changes while the run reads from it is an error.
        segments: By offset, ascending.
        num_bytes: Size of the block's buffer; what no segment covers is left as it is.
    """

    def __init__(self, reader: FileReader, segments: Iterable[Segment], num_bytes: int) -> None:
        """Note where they are."""
        self._reader, self._segments = reader, list(segments)
        self._offsets = [offset for offset, _ in self._segments]
        self.num_bytes = num_bytes
        self.host_bytes = sum(s.numel() for _, s in self._segments if isinstance(s, Tensor))

    def fetch(self, begin_byte: int, target: Tensor) -> None:
        """Read the bytes from `begin_byte` on into `target`, (any,) uint8 on the host."""
        end_byte = begin_byte + target.numel()
        wanted = []
        first = max(bisect.bisect_right(self._offsets, begin_byte) - 1, 0)
        for offset, stored in self._segments[first:]:
            if offset >= end_byte:
                break
            size_bytes = stored.numel() if isinstance(stored, Tensor) else stored.num_bytes
            begin, end = max(offset, begin_byte), min(offset + size_bytes, end_byte)
            if begin >= end:
                continue
            part = target[begin - begin_byte : end - begin_byte]
            if isinstance(stored, Tensor):
                part.copy_(stored[begin - offset : end - offset])
            else:
                where = stored.offset_bytes + begin - offset
                wanted.append((FilePart(stored.file, where, end - begin), part))
        self._reader.start(wanted).result()
