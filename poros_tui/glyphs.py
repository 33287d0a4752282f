"""The signs that screens draw with, and their plain twins for terminals that are not UTF-8."""

from __future__ import annotations

import locale
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; each is one column wide."""

    ok: str = "✓"
    warn: str = "▲"
    error: str = "✗"
    unknown: str = "?"
    busy: str = "●"
    idle: str = "○"
    paused: str = "‖"
    dot: str = "·"
    arrow: str = "→"
    back: str = "◀"
    forward: str = "▶"
    dots: str = "…"
    full: str = "━"
    half: str = "╸"
    empty: str = "─"
    bar: str = "▇"
    trough: str = "▁"
    resident: str = "■"
    arrived: str = "▓"
    arriving: str = "▒"
    computing: str = "◉"
    waiting: str = "░"
    best: str = "◆"
    previous: str = "◂"
    next: str = "▸"

    @property
    def is_plain(self) -> bool:
        """ASCII only."""
        return self is PLAIN


FANCY = Glyphs()
PLAIN = Glyphs(
    ok="+", warn="!", error="x", unknown="?", busy="*", idle="o", paused="=", dot="-", arrow=">",
    back="<", forward=">", dots="~", full="=", half="-", empty=".", bar="#", trough=".",
    resident="#", arrived="=", arriving="-", computing="@", waiting=".", best="*",
    previous="<", next=">",
)  # fmt: skip


def chosen() -> Glyphs:
    """The set for this process's terminal, by the locale; ``POROS_ASCII=1`` asks for plain ones."""
    if os.environ.get("POROS_ASCII", "") not in ("", "0"):
        return PLAIN
    return FANCY if "utf" in locale.getpreferredencoding(False).lower() else PLAIN
