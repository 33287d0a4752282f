"""What is learned: the rows, how they are read, which tokens are trained."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class DataScreen(PorosScreen):
    """The mode `data`."""

    TITLE = "Data"
    HELP = "What is learned: the rows, how they are read, which tokens are trained."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
