"""Sizes as people read them: in GB, and in a smaller unit what would be 0.00 of them."""

from __future__ import annotations

_SMALLER = ((1e6, "MB"), (1e3, "kB"))


def told_size(num_bytes: float, digits: int = 2) -> str:
    """A number of bytes in GB of 1e9, or in MB or kB if it is too small for those.

    Args:
        num_bytes: At least 0.
        digits: After the point.
    """
    if num_bytes >= 10 ** (9 - digits) or not num_bytes:
        return f"{num_bytes / 1e9:.{digits}f} GB" if num_bytes else "0 GB"
    for unit_bytes, name in _SMALLER:
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.{digits}f} {name}"
    return "1 byte" if num_bytes == 1 else f"{num_bytes:.0f} bytes"
