"""All runs of this machine: open, compare, resume, clone, delete."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class RunsScreen(PorosScreen):
    """The mode `runs`."""

    TITLE = "Runs"
    HELP = "Every run that was started on this machine, the latest first."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
