"""The last line of a screen: the keys that can be pressed now, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

_STAY = ("explain", "leave", "quit")
"""Actions whose keys are shown in any case: help names all the others."""
_GOES_FIRST = "command_palette"
_GAPS = 3
"""Columns beside a key and its name; the last one may lie outside."""


class KeyLine(Footer):
    """A footer that cuts no key: one without room, or that does nothing now, is left out."""

    def __init__(
        self, idle: Callable[[], frozenset[str]], names: Callable[[], Mapping[str, str]]
    ) -> None:
        """``idle``: the actions that would do nothing now; ``names``: those that do something else.

        The names are what the line calls them now, in place of what their bindings do.
        """
        super().__init__(show_command_palette=False)  # it is a key like the others
        self._idle, self._names = idle, names
        self._room = 0
        self._shown: list[tuple[object, ...]] = []

    def compose(self) -> ComposeResult:
        """The keys that fit, in their order."""
        keys = self._fitting()
        self._shown = [_looks(key) for key in keys]
        yield from keys

    async def recompose(self) -> None:
        """Textual asks for it whenever the keyboard moves; where no key changes nothing is done.

        New keys lay the whole screen out again, which is felt at each press of an arrow.
        """
        if [_looks(key) for key in self._fitting()] != self._shown:
            await super().recompose()

    def _fitting(self) -> list[FooterKey]:
        self._room = self.app.size.width
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        useful = [key for key in keys if key.action not in self._idle()]
        names = self._names()
        for key in useful:
            key.description = names.get(key.action, key.description)
        return fitting(useful, self._room)

    def on_resize(self) -> None:
        """There is more room now, or less."""
        if self._room != self.app.size.width:
            self.call_after_refresh(self.recompose)


def fitting(keys: Sequence[FooterKey], room: int) -> list[FooterKey]:
    """What fits into ``room`` columns; first the palette's key goes, then those at the right."""
    shown = list(keys)
    going = [key for key in keys if key.action == _GOES_FIRST]
    going += [key for key in reversed(keys) if key.action not in (_GOES_FIRST, *_STAY)]
    while going and sum(_columns(key) for key in shown) > room + 1:
        shown.remove(going.pop(0))
    return shown


def _looks(key: FooterKey) -> tuple[object, ...]:
    return key.key, key.key_display, key.description, key.action, key.disabled


def _columns(key: FooterKey) -> int:
    return len(key.key_display) + len(key.description) + _GAPS
