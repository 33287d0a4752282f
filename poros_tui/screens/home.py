"""Where one starts: recent runs, the guided setup, the demo, a run that can go on."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class HomeScreen(PorosScreen):
    """The mode `home`."""

    TITLE = "Home"
    HELP = "Start here: the guided setup leads from this machine's check to a trained adapter."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
