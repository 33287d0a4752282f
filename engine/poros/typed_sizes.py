"""Sizes as people type them, a number with a unit or without: one reading of them for all."""

from __future__ import annotations

import math
import re
from typing import Any

_SIZE = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE)
_GB = ("gb", "g")
_IN_GB = ("", *_GB)
_UNITS = {"": 1, "b": 1} | {
    letter + tail: base**power
    for power, letter in enumerate("kmgt", start=1)
    for tail, base in (("", 1000), ("b", 1000), ("ib", 1024))
}


def typed_bytes(text: str) -> float | None:
    """The bytes of ``4GB``, ``250 MB``, ``1GiB`` or a plain number; None: it is no size."""
    parts = _parts(text)
    return None if parts is None else parts[0] * _UNITS[parts[1]]


def typed_gb(text: str, *words: str) -> float | str:
    """The GB (1e9 bytes) of ``12``, ``12.0``, ``12GB``, ``12 GB`` or ``12g``.

    Args:
        text: What was typed.
        words: What may stand in its place, and is given back.

    Raises:
        ValueError: It is none of these, or a size in another unit; says what to write.
    """
    if text in words:
        return text
    if told := other_unit(text):
        raise ValueError(told)
    parts = _parts(text)
    if parts is None or parts[1] not in _IN_GB:
        neither = f"neither {' nor '.join(words)} nor a" if words else "no"
        raise ValueError(f"{text!r} is {neither} number of GB")
    return parts[0]


def without_gb(value: Any) -> Any:
    """The number of a text such as ``12GB``; anything else stays as it is."""
    parts = _parts(value) if isinstance(value, str) else None
    return parts[0] if parts is not None and parts[1] in _GB else value


def other_unit(text: str) -> str:
    """What to say of a size in another unit than GB; empty: it has none, or can't be a size."""
    parts = _parts(text)
    if parts is None or parts[1] in _IN_GB or not 0 < in_gb(text) < math.inf:
        return ""
    return f"sizes are in GB (1e9 bytes): write {in_gb(text):.6g} for {text.strip()}"


def in_gb(text: str) -> float:
    """A size of any unit in GB; 0: it is no size."""
    return (typed_bytes(text) or 0) / 1e9


def _parts(text: str) -> tuple[float, str] | None:
    """Number and unit, the latter in small letters."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2].lower() not in _UNITS:
        return None
    return float(found[1]), found[2].lower()
