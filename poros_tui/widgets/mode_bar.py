"""The second line: all modes with their number keys; what was passed has its tick."""

from __future__ import annotations

from collections.abc import Mapping

from textual import events
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from poros_tui import glyphs


class ModeBar(Widget):
    """Each mode's number and title, in one line of at most 78 columns."""

    class Chosen(Message):
        """A mode was clicked."""

        def __init__(self, mode: str) -> None:
            """By its name."""
            super().__init__()
            self.mode = mode

    def __init__(self, modes: Mapping[str, str], here: str) -> None:
        """``modes``: name to title, in the order of the number keys."""
        super().__init__()
        self._modes, self._here = modes, here
        self._done: frozenset[str] = frozenset()

    def show(self, done: set[str]) -> None:
        """Draw again if another step was passed."""
        if done != self._done:
            self._done = frozenset(done)
            self.refresh()

    def render(self) -> Content:
        """The modes, ours in the accent colour."""
        return Content(self._between).join(self._part(name) for name in self._modes)

    def on_click(self, event: events.Click) -> None:
        """Tell which mode lies there."""
        place = event.get_content_offset(self)
        end = 0
        for name in self._modes if place else ():
            end += self._part(name).cell_length + len(self._between)
            if place and place.x < end:
                self.post_message(self.Chosen(name))
                return

    @property
    def _between(self) -> str:
        return "  " if self.size.width >= 90 or not self._done else " "

    def _part(self, name: str) -> Content:
        number = str(list(self._modes).index(name) + 1)
        is_here = name == self._here
        part = Content.styled(f"{number} ", "bold $accent" if is_here else "$quiet")
        part += Content.styled(self._modes[name], "bold $accent" if is_here else "$secondary")
        if name in self._done:
            part += Content.styled(f" {glyphs.chosen().ok}", "$success")
        return part
