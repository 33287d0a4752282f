"""Bars with a name and a size each, longest first: what something is made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.content import Content
from textual.widget import Widget

from poros_tui import glyphs, words

_SIZE = 9


class Bars(Widget):
    """Draws sizes in bytes as bars of the largest one's length."""

    DEFAULT_CSS = "Bars { height: auto; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        """Without bars."""
        super().__init__(id=id)
        self._parts: tuple[tuple[str, int], ...] = ()

    def show(self, parts: Sequence[tuple[str, int]]) -> None:
        """Other parts: name and bytes."""
        self._parts = tuple(parts)
        self.refresh(layout=True)

    def get_content_height(self, container: Any, viewport: Any, width: int) -> int:
        """A line each, and the sum."""
        return len(self._parts) + 1 if self._parts else 1

    def render(self) -> Content:
        """Names, bars, sizes."""
        if not self._parts:
            return Content("")
        name_room = max(len(name) for name, _ in self._parts)
        room = max(4, self.size.width - name_room - _SIZE - 2)
        largest, sign = max(size for _, size in self._parts), glyphs.chosen().bar
        lines = []
        for name, size in self._parts:
            bar = sign * max(1, round(room * size / largest))
            lines.append(
                Content.styled(f"{name:<{name_room}} ", "$secondary")
                + Content.styled(f"{bar:<{room}}", "$accent")
                + Content(f"{words.gigabytes(size):>{_SIZE}}")
            )
        total = words.gigabytes(sum(size for _, size in self._parts))
        gap = " " * (room + name_room + 1 - len("together"))
        lines.append(Content.styled("together" + gap, "$secondary") + Content(f"{total:>{_SIZE}}"))
        return Content("\n").join(lines)
