"""Choose a file or a folder: its path can be typed, or found step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Static

from poros.home_paths import here, typed_path
from poros_tui import glyphs, words
from poros_tui.widgets.entry_list import Entry, EntryList
from poros_tui.widgets.steady import Dialog

MOST_ENTRIES = 2000
"""Of a folder: more are not looked for here."""


@dataclass(frozen=True, slots=True)
class Found:
    """What lies in a folder.

    Attributes:
        name: Of the file or folder.
        is_choice: It can be chosen; a folder that can't is gone into.
        note: Its size, or what it is.
        is_doubtful: It can be chosen, but is hardly what is looked for.
    """

    name: str
    is_choice: bool
    note: str
    is_doubtful: bool = False


_LOOKED_AT_BYTES = 1024

Lister = Callable[[Path], Sequence[Found]]


class PathDialog(Dialog[str]):
    """Gives the path that was chosen; escape gives ``""``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back", id="path.back", tooltip="Choosing a file: back"),
        Binding(
            "backspace",
            "up",
            "Folder above",
            id="path.up",
            tooltip="Choosing a file: the folder above",
        ),
        Binding(
            "slash", "type", "Type a path", id="path.type", tooltip="Choosing a file: type its path"
        ),
    ]

    def __init__(self, title: str, hint: str, start: Path, lister: Lister) -> None:
        """Args as drawn: ``hint`` says what can be chosen, ``lister`` what a folder holds."""
        super().__init__()
        self._title, self._hint, self._lister = title, hint, lister
        self.folder = start if start.is_dir() else here()

    def compose(self) -> ComposeResult:
        """Title, path, entries, what is wrong."""
        with Vertical(classes="dialog path"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Input(str(self.folder), id="path-typed", compact=True)
            yield EntryList(title_width=48, id="path-entries")
            yield Static(self._hint, id="path-hint", classes="dialog-detail", markup=False)

    async def on_mount(self) -> None:
        """The folder that it begins in."""
        self.query_one(EntryList).focus()
        await self.go(self.folder)

    async def go(self, folder: Path, at: str | None = None) -> None:
        """Show another folder; what is wrong with it is told."""
        try:
            found = await asyncio.to_thread(self._lister, folder)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "can not be read"
            text = f"{words.short_path(folder)}: {why}"
            self.query_one("#path-hint", Static).update(words.safe(text))
            return
        self.folder = folder
        signs = glyphs.chosen()
        entries = [Entry("..", "..", glyph=signs.back)] if folder.parent != folder else []
        entries += [entry_of(one) for one in found[:MOST_ENTRIES]]
        self._choices = {one.name for one in found if one.is_choice}
        first = next((one.name for one in found), None)
        self.query_one(EntryList).show(entries, at=at or first)
        self.query_one(Input).value = str(folder)
        hint = self._hint if found else f"Nothing to choose here. {self._hint}"
        self.query_one("#path-hint", Static).update(words.safe(hint))

    async def on_entry_list_chosen(self, event: EntryList.Chosen) -> None:
        """Into a folder, or out with a choice."""
        event.stop()
        if event.entry.key == "..":
            await self.action_up()
        elif event.entry.key in self._choices:
            self.dismiss(str(self.folder / event.entry.key))
        else:
            await self.go(self.folder / event.entry.key)

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """A typed path: a folder is shown, or chosen if it can be; a file is chosen."""
        event.stop()
        path = typed_path(event.value)
        if await asyncio.to_thread(path.is_file):
            self.dismiss(str(path))
            return
        above = await asyncio.to_thread(self._listed, path.parent)
        if any(one.is_choice and one.name == path.name for one in above):
            self.dismiss(str(path))
            return
        self.query_one(EntryList).focus()
        await self.go(path)

    async def action_up(self) -> None:
        """The folder above."""
        await self.go(self.folder.parent, at=self.folder.name)

    def action_type(self) -> None:
        """Into the field."""
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        """Nothing was chosen."""
        self.dismiss("")

    def _listed(self, folder: Path) -> Sequence[Found]:
        try:
            return self._lister(folder)
        except (OSError, ValueError):
            return []


def entry_of(one: Found, *, choice_sign: bool = True) -> Entry:
    """As a list shows it; without ``choice_sign`` only what is doubtful has a sign."""
    signs = glyphs.chosen()
    glyph, colour = signs.forward, "secondary"
    if one.is_doubtful:
        glyph, colour = signs.warn, "warning"
    elif not choice_sign:
        glyph = ""
    elif one.is_choice:
        glyph, colour = signs.ok, "success"
    return Entry(one.name, one.name, note=one.note, glyph=glyph, colour=colour)


def list_models(folder: Path) -> list[Found]:
    """Folders; those with a config.json can be chosen.

    Raises:
        OSError: The folder can't be read.
    """
    found = []
    for path in sorted(folder.iterdir(), key=lambda one: one.name.lower()):
        if not path.name.startswith(".") and _is(path.is_dir):
            is_model = _is((path / "config.json").is_file)
            found.append(Found(path.name, is_model, "a model" if is_model else ""))
    return sorted(found, key=lambda one: not one.is_choice)


def list_data(folder: Path) -> list[Found]:
    """Folders, and files that rows can be read from, which can be chosen.

    Raises:
        OSError: The folder can't be read.
    """
    folders, files = [], []
    for path in sorted(folder.iterdir(), key=lambda one: one.name.lower()):
        if path.name.startswith("."):
            continue
        if _is(path.is_dir):
            folders.append(Found(path.name, False, ""))
        elif path.suffix.lower() in (".jsonl", ".ndjson", ".json", ".csv", ".parquet"):
            doubt = _doubt(path)
            files.append(Found(path.name, True, doubt or _size(path), bool(doubt)))
    return sorted(files, key=lambda one: one.is_doubtful) + folders


def _doubt(path: Path) -> str:
    """Why a file hardly has rows, seen from its beginning; empty: it may well have some."""
    try:
        with path.open("rb") as file:
            head = file.read(_LOOKED_AT_BYTES)
    except OSError as error:
        return error.strerror or "can't be read"
    if not head.strip():
        return "empty"
    is_text = path.suffix.lower() != ".parquet"
    return "no text" if is_text and b"\0" in head else ""


def _is(asked: Callable[[], bool]) -> bool:
    try:
        return asked()
    except OSError:
        return False


def _size(path: Path) -> str:
    try:
        return words.gigabytes(path.stat().st_size)
    except OSError:
        return ""
