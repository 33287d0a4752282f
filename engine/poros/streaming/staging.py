"""Bytes that a device can't copy from where they lie: they pass through a few pinned pieces.

[Note: a piece is filled again only after its copy]
One thread fills pieces in the order in which slots asked, and queues a copy from each. Before a
piece is filled again the thread waits for that copy to end; the device would else be handed the
next piece's bytes under this one's name. Who binds a slot waits until its last copy is queued, and
the device then waits for that copy, as for one from registered memory.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from poros.streaming.host_memory import HostBuffer

PIECE_BYTES = 32 * 2**20
NUM_PIECES = 3
"""One is filled, one is copied, one lets the two be of unequal speed."""


class Copied(Protocol):
    """The end of a copy."""

    def synchronize(self) -> None:
        """Wait for it on the host."""


class Staged(Protocol):
    """Bytes in pageable memory, or in files."""

    @property
    def num_bytes(self) -> int:
        """How many."""

    def fetch(self, begin_byte: int, target: Tensor) -> None:
        """Put the bytes from `begin_byte` on into `target`, (any,) uint8 on the host."""


Put = Callable[[int, Tensor], Copied | None]
"""Queue the copy of a piece to its place (the first byte's index); None: it has been made."""


class Staging:
    """The pieces, and the thread that fills them; nothing is allocated before the first use.

    Args:
        device: Where copies go.
        piece_bytes: Size of a piece.
        num_pieces: How many there are.
    """

    def __init__(
        self, device: torch.device, *, piece_bytes: int = PIECE_BYTES, num_pieces: int = NUM_PIECES
    ) -> None:
        """Start no thread yet."""
        self._device = device
        self._piece_bytes, self._num_pieces = piece_bytes, num_pieces
        self._pieces: list[_Piece] = []
        self._next = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="poros-stage")

    @property
    def num_bytes(self) -> int:
        """Host memory of the pieces."""
        return sum(piece.buffer.tensor.numel() for piece in self._pieces)

    def start(self, staged: Staged, put: Put) -> Future[None]:
        """Bring the bytes over in the background, after all that was started before.

        Returns:
            Done when the last copy is queued. Its ``result()`` raises what `fetch` raises.
        """
        return self._thread.submit(self._bring, staged, put)

    def _bring(self, staged: Staged, put: Put) -> None:
        with torch.no_grad():
            for begin in range(0, staged.num_bytes, self._piece_bytes):
                size_bytes = min(self._piece_bytes, staged.num_bytes - begin)
                piece = self._take_piece()
                part = piece.buffer.tensor[:size_bytes]
                staged.fetch(begin, part)
                piece.copied = put(begin, part)

    def _take_piece(self) -> _Piece:
        """The piece whose turn it is, when nothing reads it any more."""
        while len(self._pieces) < self._num_pieces:
            self._pieces.append(_Piece(self._piece_bytes, self._device))
        piece = self._pieces[self._next]
        self._next = (self._next + 1) % self._num_pieces
        piece.wait_copied()
        return piece


class _Piece:
    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.buffer = HostBuffer(num_bytes, device)
        self.buffer.register()
        self.copied: Copied | None = None

    def wait_copied(self) -> None:
        copied, self.copied = self.copied, None
        if copied is not None:
            copied.synchronize()
