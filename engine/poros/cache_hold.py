"""Who has an entry of the NF4 cache: runs share it, a removal wants it alone; needs no torch.

The kernel keeps the hold, so a killed run leaves none behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

LOCK = "poros_lock"


class Hold:
    """Keeps an entry from being removed until it is let go, or nobody knows of it any more."""

    def __init__(self, descriptor: int) -> None:
        """Own an open file that carries the lock."""
        self._finish = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        """Let go."""
        self._finish()


def hold(entry: Path) -> Hold | None:
    """Have an entry along with others.

    Returns:
        None: it is not there, is being removed, or lies where nothing can be locked.
    """
    return _take(entry, fcntl.LOCK_SH, create=True)


def is_in_use(entry: Path) -> bool:
    """Whether a run has an entry now."""
    if not (entry / LOCK).exists():
        return False
    try:
        alone = _lock(entry, fcntl.LOCK_EX, create=False)
    except BlockingIOError:
        return True
    except OSError:
        return False
    os.close(alone)
    return False


@contextlib.contextmanager
def alone(entry: Path) -> Iterator[bool]:
    """Have an entry alone, to remove it; yields False if a run has it."""
    if is_in_use(entry):
        yield False
        return
    taken = _take(entry, fcntl.LOCK_EX, create=True)
    try:
        yield taken is not None or not is_in_use(entry)
    finally:
        if taken is not None:
            taken.release()


def _take(entry: Path, kind: int, *, create: bool) -> Hold | None:
    try:
        return Hold(_lock(entry, kind, create=create))
    except OSError:
        return None


def _lock(entry: Path, kind: int, *, create: bool) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    descriptor = os.open(entry / LOCK, flags, 0o644)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
