"""How a run stands in a list: a word with its sign and colour, how far it came, when it was."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from poros.runs import GONE, KILLED, RUNNING, STARTING
from poros_tui import glyphs, words
from poros_tui.engine.run_list import FAILED, FINISHED, STOPPED, Listed


@dataclass(frozen=True, slots=True)
class Look:
    """A state's word, its sign's name in `Glyphs`, and its colour in the theme."""

    word: str
    sign: str
    colour: str

    @property
    def glyph(self) -> str:
        """The sign for this terminal."""
        return str(getattr(glyphs.chosen(), self.sign))

    def content(self) -> Content:
        """Sign and word."""
        return Content.styled(f"{self.glyph} {self.word}", f"${self.colour}")


LOOKS = {
    STARTING: Look("starting", "busy", "accent"),
    RUNNING: Look("training", "busy", "accent"),
    FINISHED: Look("finished", "ok", "success"),
    STOPPED: Look("stopped", "paused", "warning"),
    FAILED: Look("failed", "error", "error"),
    KILLED: Look("killed", "error", "error"),
    GONE: Look("gone", "unknown", "quiet"),
}


def progress(listed: Listed) -> str:
    """``412 of 1,200``; empty: it never began."""
    story = listed.run.story
    if not story.total_steps:
        return ""
    if story.step >= story.total_steps:
        return f"{story.step:,} steps"
    return f"{story.step:,} of {story.total_steps:,}"


def loss(listed: Listed) -> str:
    """The last loss, with three decimals."""
    value = listed.run.story.final_loss
    return "" if value is None else f"{value:.3f}"


def when(listed: Listed, now_s: float) -> str:
    """``5 min ago``; empty: unknown."""
    last_s = listed.run.story.last_s
    return words.ago(last_s, now_s) if last_s else ""


def line(listed: Listed, now_s: float, room: int, mark: str = "") -> Content:
    """A run in one line of ``room`` columns; ``mark`` stands before it."""
    look = LOOKS[listed.run.state]
    columns = _columns(room - len(mark))
    texts = {
        "name": words.safe(listed.name),
        "model": words.safe(listed.model),
        "progress": progress(listed),
        "loss": loss(listed),
        "size": words.gigabytes(listed.run.num_bytes) if listed.run.num_bytes else "",
        "when": when(listed, now_s),
    }
    text = Content.styled(mark, "bold $accent")
    text += Content.styled(f"{look.glyph} {look.word:<9}", f"${look.colour}")
    for name, width in columns.items():
        style = {"name": "bold", "model": "$quiet"}.get(name, "$secondary")
        text += Content.styled(_cell(name, texts[name], width), style)
    return text


def head(room: int, mark: str = " ") -> Content:
    """The columns' names, above lines of the same room."""
    cells = [_cell(name, name, width) for name, width in _columns(room - len(mark)).items()]
    return Content(f"{mark}  {'state':<9}" + "".join(cells))


_LEFT = ("name", "model")
_STATE_WIDTH = 11


def _columns(room: int) -> dict[str, int]:
    """Each column's width, its gap included; what has no room is left out."""
    widths = {"progress": 16, "loss": 8, "size": 9, "when": 13}
    for name in ("size", "loss"):
        if sum(widths.values()) + _STATE_WIDTH + 34 > room:
            del widths[name]
    left = max(10, room - _STATE_WIDTH - sum(widths.values()))
    if left < 28:
        return {"name": left} | widths
    # A model's name tells less in small windows; with room, of 22 letters none is cut.
    name_width = max(min(20, left * 3 // 5), min(30, left - 24))
    return {"name": name_width, "model": left - name_width} | widths


def _cell(name: str, text: str, width: int) -> str:
    """A gap of two, then the text; numbers stand at the right."""
    shown = words.begun(text, width - 2) if name == "model" else words.shortened(text, width - 2)
    return f"  {shown:<{width - 2}}" if name in _LEFT else f"  {shown:>{width - 2}}"
