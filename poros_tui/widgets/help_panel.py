"""What `?` opens: the focused field explained, and every key that works here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from poros_tui.widgets.steady import Dialog

_COLUMNS = 57
"""Of a dialog, beside its bar."""


def _hanging(key: str, does: str, room: int) -> Iterator[tuple[str, str]]:
    for index, line in enumerate(textwrap.wrap(does, room)):
        yield "" if index else key, line


class HelpDialog(Dialog[None]):
    """Explanation above, keys below; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,question_mark,f1,enter,q",
            "dismiss",
            "Close",
            id="help.close",
            tooltip="In the help: close it",
        ),
    ]

    def __init__(self, title: str, explanation: str, keys: Iterable[tuple[str, str]]) -> None:
        """``keys``: a key as people write it, and what it does."""
        super().__init__()
        self._title, self._explanation, self._keys = title, explanation, list(keys)
        # Kept, not looked for: a size may come while they are not yet there, or there no more.
        self._scroll = VerticalScroll()
        self._way_out = Static("esc closes", classes="quiet")

    def compose(self) -> ComposeResult:
        """A dialog that scrolls."""
        width = max((len(key) for key, _ in self._keys), default=0)
        lines = [
            Content.assemble((f"{name:>{width}}  ", "$accent"), told)
            for key, does in self._keys
            for name, told in _hanging(key, does, _COLUMNS - width - 2)
        ]
        with Vertical(classes="dialog help"):
            yield Static(self._title, classes="dialog-title", markup=False)
            with self._scroll:
                yield Static(self._explanation, classes="dialog-detail", markup=False)
                yield Static(Content("\n").join(lines))
            yield self._way_out

    def on_mount(self) -> None:
        """The arrow keys show what lies below."""
        self._scroll.focus()
        self.call_after_refresh(self._tell)

    def on_resize(self) -> None:
        """More of it may be seen now."""
        self.call_after_refresh(self._tell)

    def _tell(self) -> None:
        more = "arrow keys show more   " if self._scroll.max_scroll_y else ""
        self._way_out.update(f"{more}esc closes")
