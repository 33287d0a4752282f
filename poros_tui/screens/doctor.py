"""Is this machine fit? Card, driver, memory, disk, and what mends each."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class DoctorScreen(PorosScreen):
    """The mode `doctor`."""

    TITLE = "Doctor"
    HELP = "Is this machine fit? Card, driver, memory, disk, and what mends each."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
