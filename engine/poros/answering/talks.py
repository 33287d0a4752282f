"""A conversation that base and adapter have side by side: each remembers its own answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from poros.row_shapes import Message

Who = Literal["base", "adapter"]


class Talks:
    """What was said so far, to each side.

    The base never sees an answer of the adapter: it would go on in the adapter's manner, and a
    comparison would show less of what was learned.
    """

    def __init__(self, system: str | None) -> None:
        """Begin, with ``system`` as both sides' first turn."""
        self._first: list[Message] = [{"role": "system", "content": system}] if system else []
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all but the system turn."""
        self._said: dict[Who, list[Message]] = {
            "base": list(self._first),
            "adapter": list(self._first),
        }

    def said(self, who: Who) -> Sequence[Message]:
        """The turns of a side."""
        return self._said[who]

    def asked(self, who: Who, text: str) -> list[Message]:
        """Its turns with a question after them, which is not kept yet."""
        return [*self._said[who], {"role": "user", "content": text}]

    def keep(self, who: Who, text: str, answer: str) -> None:
        """Remember a question and this side's answer to it."""
        self._said[who] = [*self.asked(who, text), {"role": "assistant", "content": answer}]


def sides(*, compare: bool) -> tuple[Who, ...]:
    """Who answers, in order."""
    return ("base", "adapter") if compare else ("adapter",)
