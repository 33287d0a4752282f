"""How it is trained: five questions, the rest folded, effects shown live."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Static

from poros_tui.screens.base import PorosScreen


class ConfigScreen(PorosScreen):
    """The mode `config`."""

    TITLE = "Config"
    HELP = "How it is trained: five questions, the rest folded, effects shown live."

    def body(self) -> ComposeResult:
        """Nothing is built yet."""
        yield Static("This screen is not built yet.", classes="quiet")
