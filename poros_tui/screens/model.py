"""Which model: is it known, does it fit this card, what does it take."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class ModelScreen(PorosScreen):
    """The mode `model`."""

    TITLE = "Model"
    HELP = "Which model: is it known, does it fit this card, what does it take."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
