"""A verdict: word, sign and colour, and what mends it; shown the same way on several screens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from poros_tui import glyphs
from poros_tui.widgets.facts import COLOURS, State, sign_of
from poros_tui.words import safe


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out.

    Attributes:
        state: ``warn``: it is so, but for something.
        text: In a sentence without a full stop.
        way_out: What mends it; empty: nothing needs mending.
    """

    state: State
    text: str
    way_out: str = ""


class VerdictLine(Widget):
    """Draws a verdict, or that something is being asked.

    Attributes:
        way_out: What is shown below; empty: nothing.
    """

    DEFAULT_CSS = """
    VerdictLine { height: auto; min-height: 1; }
    VerdictLine Static { height: auto; }
    VerdictLine .way-out { margin-left: 2; display: none; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        """Blank."""
        super().__init__(id=id)
        self.way_out = ""

    def compose(self) -> ComposeResult:
        """A line, and the way out below it."""
        yield Static(classes="said")
        yield Static(classes="way-out")

    def show(self, verdict: Verdict | None) -> None:
        """A verdict; None: blank."""
        text, self.way_out = Content(""), ""
        if verdict is not None:
            said = f"{sign_of(verdict.state)} {safe(verdict.text)}"
            text, self.way_out = (
                Content.styled(said, f"bold ${COLOURS[verdict.state]}"),
                verdict.way_out,
            )
        self.query_one(".said", Static).update(text)
        more = self.query_one(".way-out", Static)
        more.update(Content.styled(safe(self.way_out), "$accent"))
        more.display = bool(self.way_out)

    def show_busy(self, about: str, elapsed_s: float) -> None:
        """What is waited for, and since when; a way out stays."""
        line = Content.styled(f"{glyphs.chosen().busy} {safe(about)}", "bold $accent")
        line += Content.styled(f"  {elapsed_s:.0f} s, x cancels", "$secondary")
        self.query_one(".said", Static).update(line)


def failed(document: Any, error: str) -> dict[str, Any]:
    """What a command that failed said, as its ``--json`` has it.

    Args:
        document: Its last JSON value.
        error: What `tasks.Result.error` says.
    """
    if isinstance(document, dict) and isinstance(document.get("error"), dict):
        return document
    return {"error": {"message": error or "no answer", "remediation": "", "code": ""}}
