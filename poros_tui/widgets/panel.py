"""A box with a title: the frame of everything on a screen that belongs together."""

from __future__ import annotations

from textual.containers import Vertical
from textual.widget import Widget

from poros_tui.terms import explained


class Panel(Vertical):
    """A quiet border with a title.

    `?` inside explains ``term``, or says ``help``.
    """

    def __init__(
        self,
        title: str,
        *children: Widget,
        term: str = "",
        help: str = "",
        id: str | None = None,
        classes: str = "",
    ) -> None:
        """As Textual's containers, with a title; ``told`` is what `?` says."""
        super().__init__(*children, id=id, classes=f"panel {classes}".strip())
        self.border_title = title
        self.told = help or explained(term)
