"""A row of `poros doctor`: what was found, what it means and what mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from poros.told_sizes import told_size

State = Literal["ok", "warn", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was looked at.

    Attributes:
        id: Its name for scripts; it stays the same between versions.
        state: ``bad`` stops training, ``warn`` makes it slower or may stop it later, ``unknown``
            could not be looked at.
        what: What was found.
        meaning: What that means for a training run.
        fix: The command or the change that mends it; empty where nothing needs mending.
    """

    id: str
    state: State
    what: str
    meaning: str
    fix: str = ""


def gb(num_bytes: float) -> str:
    """Bytes for people, in powers of ten."""
    return told_size(num_bytes, digits=1)
