"""A run as it goes: loss, speed, memory, and the model streaming through the card."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class TrainScreen(PorosScreen):
    """The mode `train`."""

    TITLE = "Train"
    HELP = "A run as it goes: loss, speed, memory, and the model streaming through the card."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
