"""Short facts, a label and a text each: in one column with hanging lines, or two side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from textual.content import Content
from textual.widget import Widget

from poros_tui import glyphs
from poros_tui.words import safe

State = Literal["", "ok", "warn", "bad"]

COLOURS = {"ok": "success", "warn": "warning", "bad": "error", "": "foreground"}


@dataclass(frozen=True, slots=True)
class Fact:
    """A line: what it is about, what is so, and whether that is good."""

    label: str
    text: str
    state: State = ""


def sign_of(state: State) -> str:
    """The glyph of a state; a blank where nothing is judged."""
    signs = glyphs.chosen()
    return {"ok": signs.ok, "warn": signs.warn, "bad": signs.error, "": " "}[state]


class Facts(Widget):
    """Draws facts."""

    DEFAULT_CSS = "Facts { height: auto; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        """Without facts."""
        super().__init__(id=id)
        self._pairs = False
        self._facts: tuple[Fact, ...] = ()

    def show(self, facts: Sequence[Fact], *, pairs: bool = False) -> None:
        """Other facts; ``pairs`` puts two short ones on a line where both have room."""
        if (tuple(facts), pairs) != (self._facts, self._pairs):
            self._facts, self._pairs = tuple(facts), pairs
            self.refresh(layout=True)

    def get_content_height(self, container: Any, viewport: Any, width: int) -> int:
        """As many lines as it takes."""
        return len(self._lines(width))

    def render(self) -> Content:
        """All of it."""
        return Content("\n").join(self._lines(self.size.width))

    def _lines(self, width: int) -> list[Content]:
        label = max((len(fact.label) for fact in self._facts), default=0)
        half = (width - 2) // 2
        lines: list[Content] = []
        waiting: Content | None = None
        for fact in self._facts:
            whole = list(_hanging(fact, label, width))
            is_short = self._pairs and len(whole) == 1 and label + 3 + len(fact.text) <= half
            if is_short and waiting is None:
                waiting = whole[0]
            elif is_short and waiting is not None:
                lines.append(waiting + Content(" " * (half + 2 - waiting.cell_length)) + whole[0])
                waiting = None
            else:
                lines += [waiting] if waiting is not None else []
                lines += whole
                waiting = None
        return lines + ([waiting] if waiting is not None else [])


def _hanging(fact: Fact, label: int, width: int) -> Iterator[Content]:
    room = max(8, width - label - 3)
    for k, line in enumerate(textwrap.wrap(safe(fact.text), room) or [""]):
        head = Content.styled(
            f"{fact.label:<{label}} " if not k else " " * (label + 1), "$secondary"
        )
        sign = Content.styled(
            f"{sign_of(fact.state) if not k else ' '} ", f"${COLOURS[fact.state]}"
        )
        yield head + sign + Content(line)
