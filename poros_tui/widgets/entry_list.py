"""A list of things, a line each: a sign, a title, a value; cut to the width, never wrapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from poros_tui import glyphs
from poros_tui.words import safe, shortened

_NOTE_ENDS = 84
"""Columns; further right notes stand in no window."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        key: Its name; of a heading empty: the cursor passes it over.
        title: What it is.
        value: What is told of it.
        glyph: Before the title.
        colour: Theme variable of the glyph, without its sign.
        note: At the right end.
    """

    key: str
    title: str
    value: str = ""
    glyph: str = ""
    colour: str = "secondary"
    note: str = ""


class EntryList(ScrollView, can_focus=True):
    """Entries under headings, with a cursor.

    Attributes:
        cursor: Index of the entry that it stands on; -1: there is none.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", id="list.up", tooltip="In a list: up", show=False),
        Binding("down,j", "move(1)", "Down", id="list.down", tooltip="In a list: down", show=False),
        Binding(
            "pageup",
            "move(-10)",
            "Page up",
            id="list.page-up",
            tooltip="In a list: ten up",
            show=False,
        ),
        Binding(
            "pagedown",
            "move(10)",
            "Page down",
            id="list.page-down",
            tooltip="In a list: ten down",
            show=False,
        ),
        Binding(
            "home",
            "move(-1000)",
            "First",
            id="list.first",
            tooltip="In a list: the first",
            show=False,
        ),
        Binding(
            "end", "move(1000)", "Last", id="list.last", tooltip="In a list: the last", show=False
        ),
        Binding("enter", "choose", "Choose", id="list.choose", tooltip="In a list: choose"),
    ]
    DEFAULT_CSS = """
    EntryList { height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """

    is_list = True  # the arrows come here when a field is left
    cursor = reactive(-1)

    class Highlighted(Message):
        """The cursor came to an entry."""

        def __init__(self, entries: EntryList, entry: Entry) -> None:
            """In which list."""
            super().__init__()
            self.entries, self.entry = entries, entry

    class Chosen(Message):
        """Enter, or a second click, on an entry."""

        def __init__(self, entries: EntryList, entry: Entry) -> None:
            """In which list."""
            super().__init__()
            self.entries, self.entry = entries, entry

    def __init__(
        self,
        *,
        title_width: int = 20,
        chooses: bool = True,
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """Empty.

        Args:
            title_width: Columns of titles where values follow.
            chooses: Enter chooses an entry; else it is left to the screen.
            id: As Textual's.
            classes: As Textual's.
        """
        super().__init__(id=id, classes=classes)
        self._entries: list[Entry] = []
        self._title_width, self._chooses = title_width, chooses

    @property
    def entry(self) -> Entry | None:
        """The one under the cursor."""
        return self._entries[self.cursor] if 0 <= self.cursor < len(self._entries) else None

    def show(self, entries: Sequence[Entry], *, at: str | None = None) -> None:
        """Other entries; the cursor stays on the same key, or goes to ``at`` or the first one."""
        wanted = at if at is not None else self.entry.key if self.entry else None
        before = self.entry
        self._entries = list(entries)
        self.virtual_size = Size(self.size.width, len(self._entries))
        found = [k for k, entry in enumerate(self._entries) if entry.key and entry.key == wanted]
        first = [k for k, entry in enumerate(self._entries) if entry.key]
        self.cursor = (found or first or [-1])[0]
        self.refresh()
        if self.entry is not None and self.entry != before:
            self.post_message(self.Highlighted(self, self.entry))

    def render_line(self, y: int) -> Strip:
        """One entry."""
        width, index = self.size.width, y + int(self.scroll_offset.y)
        base = self.visual_style
        if not 0 <= index < len(self._entries):
            return Strip.blank(width, base.rich_style)
        is_here = index == self.cursor
        # What is cut ends a column before the bar.
        room = width - self.show_vertical_scrollbar
        line = self._line(self._entries[index], room, plain=is_here and self.has_focus)
        if is_here:
            line = line.stylize(
                "$block-cursor-foreground on $block-cursor-background"
                if self.has_focus
                else "bold on $surface-lighten-1"
            )
        strips = Visual.to_strips(self, line, width, 1, base, pad=True)
        return strips[0] if strips else Strip.blank(width, base.rich_style)

    def _line(self, entry: Entry, width: int, *, plain: bool) -> Content:
        def styled(text: str, style: str) -> Content:
            return Content(text) if plain else Content.styled(text, style)

        if not entry.key:
            return Content.styled(_fitted(entry.title, width), "bold")
        note = f" {entry.note}" if entry.note else ""
        room = width - 3 - len(note) - 1
        title_room = min(self._title_width, room) if entry.value else room
        title = shortened(safe(entry.title), title_room, glyphs.chosen().dots)
        value = _fitted(f" {entry.value}", room - title_room) if entry.value else ""
        left = styled(f" {entry.glyph or ' '} ", f"${entry.colour}")
        left += Content(f"{title:<{title_room}}") + styled(value, "$secondary")
        # In a wide window a note at the far end belongs to nothing.
        gap = max(0, min(width - 1, _NOTE_ENDS) - left.cell_length - len(note))
        line = left + Content(" " * gap) + styled(note, "$secondary") + Content(" ")
        return line.pad_right(max(0, width - line.cell_length))

    def watch_cursor(self, cursor: int) -> None:
        """Keep it in sight, its heading too."""
        if 0 <= cursor < len(self._entries):
            top = cursor - 1 if cursor and not self._entries[cursor - 1].key else cursor
            self.scroll_to_region(Region(0, top, 1, cursor - top + 1), animate=False)
            self.refresh()

    def on_resize(self) -> None:
        """The cursor stays in sight, also where it was set before the list had a size."""
        self.call_after_refresh(self.watch_cursor, self.cursor)

    def watch_has_focus(self, value: bool) -> None:
        """The cursor is drawn otherwise."""
        super().watch_has_focus(value)
        self.refresh()

    def action_move(self, by: int) -> None:
        """The cursor goes up or down, past headings."""
        places = [k for k, entry in enumerate(self._entries) if entry.key]
        if not places:
            return
        now = places.index(self.cursor) if self.cursor in places else 0
        new = places[min(max(now + by, 0), len(places) - 1)]
        if new != self.cursor:
            self.cursor = new
            self.post_message(self.Highlighted(self, self._entries[new]))
        if new == places[0]:
            self.scroll_home(animate=False)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enter is the screen's where nothing is chosen here."""
        return self._chooses if action == "choose" else True

    def action_choose(self) -> None:
        """Enter."""
        if self.entry is not None:
            self.post_message(self.Chosen(self, self.entry))

    def on_click(self, event: events.Click) -> None:
        """To the cursor, or the choice if it stands there already."""
        index = event.y + int(self.scroll_offset.y)
        if not 0 <= index < len(self._entries) or not self._entries[index].key:
            return
        if index == self.cursor:
            self.action_choose()
        else:
            self.cursor = index
            self.post_message(self.Highlighted(self, self._entries[index]))


def _fitted(text: str, room: int) -> str:
    shown = safe(text)
    dots = "~" if glyphs.chosen().is_plain else "…"
    return shown if len(shown) <= room else f"{shown[: max(0, room - 1)]}{dots}"
