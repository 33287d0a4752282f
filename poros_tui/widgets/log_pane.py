"""The run's log: its newest lines, filtered by what is typed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input

from poros_tui.engine.run_log import ERROR, WARNING, LogLine
from poros_tui.glyphs import FANCY, Glyphs
from poros_tui.words import clock, safe

MOST_LINES = 2_000


class LogLines(ScrollView):
    """Lines of a log that follow its end until somebody scrolls up."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--time", "log--info", "log--warning", "log--error"}
    DEFAULT_CSS = """
    LogLines {
        height: 1fr;
        overflow-x: hidden;
        scrollbar-size-vertical: 1;
        scrollbar-color: $foreground 25%;
        scrollbar-background: $background;
        & > .log--time { color: $foreground 35%; }
        & > .log--info { color: $foreground 75%; }
        & > .log--warning { color: $warning; }
        & > .log--error { color: $error; }
    }
    """
    HELP = "Everything that was said during the run. Type / and a word to see only lines with it."

    def __init__(self, *, glyphs: Glyphs = FANCY, id: str | None = None) -> None:
        """No lines yet."""
        super().__init__(id=id)
        self.glyphs = glyphs
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)
        self._shown: list[LogLine] = []
        self._wanted = ""
        self._follows = True

    @property
    def shown(self) -> list[LogLine]:
        """The lines that pass the filter."""
        return self._shown

    def add(self, lines: Sequence[LogLine]) -> None:
        """Append lines."""
        self._lines.extend(lines)
        if lines:
            self._sift()

    def clear(self) -> None:
        """Another run."""
        self._lines.clear()
        self._sift()

    def want(self, text: str) -> None:
        """Show only lines with this text, in any case of letters; empty: all."""
        self._wanted = text
        self._sift()

    def _sift(self) -> None:
        wanted = self._wanted.casefold()
        self._shown = [
            line
            for line in self._lines
            if not wanted or wanted in line.text.casefold() or wanted == line.level
        ]
        self.virtual_size = Size(self.size.width, len(self._shown))
        self._keep_end()
        self.refresh()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Who scrolls up stays there; who comes back to the end follows it again."""
        super().watch_scroll_y(old_value, new_value)
        if self.size.height:
            self._follows = new_value >= self.max_scroll_y - 1

    def on_resize(self) -> None:
        """More or fewer lines have room: the newest ones stay in sight."""
        self._keep_end()

    def watch_show_vertical_scrollbar(self) -> None:
        """The first lay-out is no resize for what scrolls by lines, but it brings the scrollbar."""
        self._keep_end()

    def _keep_end(self) -> None:
        if self._follows:
            self.scroll_end(animate=False)

    def render_line(self, y: int) -> Strip:
        """One line: time, sign, words."""
        index = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if not self._shown and self._lines and y == 0:
            told = f"No line has {safe(self._wanted)}: / and esc show all lines again."
            return Strip([Segment(told, self.get_component_rich_style("log--info"))]).crop(0, width)
        if index >= len(self._shown):
            return Strip.blank(width, self.rich_style)
        line = self._shown[index]
        style = self.get_component_rich_style(f"log--{line.level}")
        sign = {WARNING: self.glyphs.warn, ERROR: self.glyphs.error}.get(line.level, " ")
        time = Segment(f"{clock(line.time_s)} ", self.get_component_rich_style("log--time"))
        text = f"{sign} {line.text}"
        room = max(0, width - 6)
        if len(text) > room:
            text = text[: max(0, room - 1)] + self.glyphs.dots
        return Strip([time, Segment(text, style)]).adjust_cell_length(width, self.rich_style)


class LogPane(Vertical):
    """The lines, and below them the field for the filter while it is used."""

    DEFAULT_CSS = """
    LogPane {
        height: 1fr;
        & > Input { display: none; height: 1; border: none; padding: 0; background: $panel; }
        & > Input.-open { display: block; }
    }
    """

    def __init__(self, *, glyphs: Glyphs = FANCY, id: str | None = None) -> None:
        """No lines yet."""
        super().__init__(id=id)
        self.lines = LogLines(glyphs=glyphs)

    def compose(self) -> ComposeResult:
        """Lines above, field below."""
        yield self.lines
        yield Input(placeholder="find in the log (esc closes)", compact=True)

    def open_filter(self) -> None:
        """Type the filter now."""
        field = self.query_one(Input)
        field.add_class("-open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Each letter filters."""
        event.stop()
        self.lines.want(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, give the keyboard back."""
        event.stop()
        self.screen.set_focus(None)
        event.input.set_class(bool(event.value), "-open")

    def on_key(self, event: object) -> None:
        """Escape takes the filter away."""
        field = self.query_one(Input)
        if getattr(event, "key", "") == "escape" and field.has_focus:
            event.stop()  # type: ignore[attr-defined]
            field.value = ""
            field.remove_class("-open")
            self.screen.set_focus(None)
