"""Which sample lengths fit which cards: a table with a cursor, drawn cell by cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from poros_tui import glyphs
from poros_tui.words import safe

_HEAD = 8
_WIDEST, _NARROWEST = 11, 7
_COLOURS = {"fits": "success", "tight": "warning", "no": "error"}


class FitTable(Widget, can_focus=True):
    """Draws the ``table`` of `poros check --table --json`.

    Attributes:
        row: Of the cursor.
        column: Of the cursor.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "up,k",
            "move(-1, 0)",
            "Up",
            id="fit.up",
            tooltip="In the table of what fits: shorter samples",
            show=False,
        ),
        Binding(
            "down,j",
            "move(1, 0)",
            "Down",
            id="fit.down",
            tooltip="In the table of what fits: longer samples",
            show=False,
        ),
        Binding(
            "left,h",
            "move(0, -1)",
            "Left",
            id="fit.left",
            tooltip="In the table of what fits: the card before",
            show=False,
        ),
        Binding(
            "right,l",
            "move(0, 1)",
            "Right",
            id="fit.right",
            tooltip="In the table of what fits: the next card",
            show=False,
        ),
    ]
    DEFAULT_CSS = "FitTable { height: auto; width: 1fr; }"

    is_list = True  # the arrows come here when a field is left
    row = reactive(0)
    column = reactive(0)

    class Moved(Message):
        """The cursor came to another cell."""

        def __init__(self, row: int, column: int) -> None:
            """Which one."""
            super().__init__()
            self.row, self.column = row, column

    def __init__(self, *, id: str | None = None) -> None:
        """Without a table."""
        super().__init__(id=id)
        self.table: Mapping[str, Any] | None = None

    def show(self, table: Mapping[str, Any] | None, *, tokens: int) -> None:
        """Another table; the cursor goes to the length that is wanted, on this machine's card."""
        self.table = table
        if table is not None:
            columns = table["columns"]
            here = [k for k, column in enumerate(columns) if column["here"]]
            usual = [k for k, column in enumerate(columns) if column["name"] == "8 GB"]
            rows = [k for k, length in enumerate(table["lengths"]) if length <= tokens]
            self.row, self.column = (rows or [0])[-1], (here or usual or [0])[0]
        self.refresh(layout=True)

    @property
    def cell(self) -> Mapping[str, Any] | None:
        """The one under the cursor."""
        found: Mapping[str, Any] | None = None
        if self.table is not None:
            found = self.table["cells"][self.row][self.column]
        return found

    def get_content_height(self, container: Any, viewport: Any, width: int) -> int:
        """A head, and the lengths."""
        return len(self.table["lengths"]) + 1 if self.table is not None else 1

    def render(self) -> Content:
        """All of it; columns that have no room are left out, but for the cursor's."""
        if self.table is None:
            return Content("")
        table, first, shown, wide = self.table, *self._window()
        places = range(first, first + shown)
        head = Content.styled(f"{'tokens':>{_HEAD - 1}} ", "$secondary")
        for k in places:
            head += self._head(table["columns"][k], wide, k == self.column)
        lines = [head]
        for row, length in enumerate(table["lengths"]):
            is_here = row == self.row
            style = "bold $foreground" if is_here else "$secondary"
            line = Content.styled(f"{length:>{_HEAD - 1},} ", style)
            for k in places:
                line += self._cell(table["cells"][row][k], wide, is_here and k == self.column)
            lines.append(line)
        return Content("\n").join(lines)

    def action_move(self, down: int, right: int) -> None:
        """The cursor goes to a cell beside."""
        if self.table is not None:
            row = min(max(self.row + down, 0), len(self.table["lengths"]) - 1)
            column = min(max(self.column + right, 0), len(self.table["columns"]) - 1)
            self._go(row, column)

    def on_click(self, event: events.Click) -> None:
        """To the cell that was clicked."""
        place = event.get_content_offset(self)
        if place is None or self.table is None:
            return
        first, shown, wide = self._window()
        row, column = place.y - 1, first + (place.x - _HEAD) // wide
        if 0 <= row < len(self.table["lengths"]) and first <= column < first + shown:
            self._go(row, column)

    def _go(self, row: int, column: int) -> None:
        if (row, column) != (self.row, self.column):
            self.row, self.column = row, column
            self.post_message(self.Moved(row, column))

    def _window(self) -> tuple[int, int, int]:
        """First column that is shown, how many, and how wide each is."""
        number = len(self.table["columns"]) if self.table is not None else 1
        room = max(self.size.width - _HEAD, _NARROWEST)
        wide = min(max(room // number, _NARROWEST), _WIDEST)
        shown = max(1, min(number, room // wide))
        first = min(max(0, self.column - shown + 1), number - shown)
        return first, shown, wide

    def _head(self, column: Mapping[str, Any], wide: int, is_here: bool) -> Content:
        name = "here" if column["here"] else safe(column["name"])
        style = (
            "bold $foreground" if is_here else "bold $accent" if column["here"] else "$secondary"
        )
        # Right above narrow cells, which end with their sign; else above the words.
        text = f"{name:>{wide - 1}} " if wide == _NARROWEST else f"  {name:<{wide - 3}} "
        return Content.styled(text, style)

    def _cell(self, cell: Mapping[str, Any], wide: int, is_here: bool) -> Content:
        signs = glyphs.chosen()
        sign = {"fits": signs.ok, "tight": signs.warn, "no": signs.error}[cell["verdict"]]
        word = f"{sign} {cell['verdict']:<5}" if wide > _NARROWEST else f"{cell['verdict']}{sign}"
        text = f"{word:>{wide - 1}}" if wide == _NARROWEST else f"{word:<{wide - 1}}"
        if not is_here:
            return Content.styled(f"{text} ", f"${_COLOURS[cell['verdict']]}")
        style = (
            "$block-cursor-foreground on $block-cursor-background"
            if self.has_focus
            else f"bold ${_COLOURS[cell['verdict']]} on $surface-lighten-2"
        )
        return Content.styled(text, style) + Content(" ")

    def watch_has_focus(self, value: bool) -> None:
        """The cursor is drawn otherwise."""
        super().watch_has_focus(value)
        self.refresh()
