"""What came out of a run: adapter, samples before and after, export, report."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class ResultScreen(PorosScreen):
    """The mode `result`."""

    TITLE = "Result"
    HELP = "What came out of a run: adapter, samples before and after, export, report."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
