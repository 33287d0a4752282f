"""Folders that this user may not look into, for root too, whom no mode stops."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_CALL = ctypes.CDLL(None, use_errno=True)
_OVERRIDES = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""
_VERSION_3 = 0x20080522


@contextmanager
def modes_that_count() -> Iterator[None]:
    """This thread, and those that it starts, obey the modes of files until the end."""
    before = _capabilities()
    effective = before[0] & ~_OVERRIDES
    _set_capabilities((effective, *before[1:]))
    try:
        yield
    finally:
        _set_capabilities(before)


def _capabilities() -> tuple[int, ...]:
    data = ctypes.create_string_buffer(24)
    assert _CALL.capget(_header(), data) == 0, os.strerror(ctypes.get_errno())
    return struct.unpack("6I", data.raw)


def _set_capabilities(values: tuple[int, ...]) -> None:
    assert _CALL.capset(_header(), struct.pack("6I", *values)) == 0, ctypes.get_errno()


def _header() -> bytes:
    return struct.pack("Ii", _VERSION_3, 0)
