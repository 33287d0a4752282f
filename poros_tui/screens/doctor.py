"""Is this machine fit? Card, driver, memory, disk, real arithmetic, and what mends each."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.widgets import Static

from poros.home_paths import here
from poros_tui import glyphs, words
from poros_tui.engine.tasks import Task
from poros_tui.screens.base import PorosScreen
from poros_tui.screens.doctor_rows import Doctor, DoctorRow
from poros_tui.state import AppState
from poros_tui.widgets.entry_list import Entry, EntryList
from poros_tui.widgets.panel import Panel

LIMIT_S = 300.0
"""For the whole command; its child has a shorter limit of its own."""

_COLOURS = {"ok": "success", "warn": "warning", "bad": "error", "unknown": "secondary"}
_WORDS = {
    "ok": "fine",
    "warn": "could be better",
    "bad": "must be mended",
    "unknown": "could not be looked at",
    "trying": "being tried now",
    "waiting": "waits for its turn",
}
_HELP = (
    "Each row is something that training needs. Real arithmetic is tried in a process of its own,"
    " so a broken driver can't take this app down. Nothing is installed or changed."
)


class DoctorScreen(PorosScreen):
    """The mode `doctor`."""

    TITLE = "Doctor"
    HELP = _HELP
    LAYOUT_STYLE = "fill"
    CSS_PATH = "../styles/doctor.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "next", "Next: Model", id="doctor.next", tooltip="Go on to the model"),
        Binding("c", "copy", "Copy fix", id="doctor.copy", tooltip="Copy what mends this row"),
        Binding("r", "again", "Look again", id="doctor.again", tooltip="Look at this row again"),
        Binding("R", "all_again", "All again", id="doctor.all", tooltip="Look at everything again"),
        Binding("e", "export", "Save", id="doctor.export", tooltip="Save all rows as a JSON file"),
    ]

    def __init__(self) -> None:
        """Nothing was looked at."""
        super().__init__()
        self.doctor = Doctor()
        self._work: Task | None = None
        self._show_worst = False

    def body(self) -> ComposeResult:
        """A verdict, the rows, and the row under the cursor explained."""
        yield Static(id="doctor-verdict")
        with Container(id="doctor-split"):
            yield Panel(
                "What was looked at", EntryList(id="doctor-rows", chooses=False), help=_HELP
            )
            yield Panel("", Static(id="doctor-detail"), id="doctor-about", help=_HELP)

    def on_mount(self) -> None:
        """The first look begins by itself."""
        self.query_one(EntryList).focus()
        self._look()

    def on_unmount(self) -> None:
        """The app ends: so does what it asked."""
        if self._work is not None:
            self._work.cancel()

    def on_tick(self, state: AppState) -> None:
        """Rows that came."""
        task = self._work
        if task is None:
            return
        result = task.result
        is_new = self.doctor.hear(task.drain())
        if result is not None:
            self._work = None
            # A bad row is exit code 1 too: without a verdict the command itself failed.
            is_whole = bool(result.records) and result.records[-1].get("kind") == "verdict"
            self.doctor.end(self.shell.clock(), "" if is_whole else result.error)
            if self.doctor.worst != "bad" and is_whole:
                state.done.add("doctor")
            self._show_worst = self.doctor.count("bad") > 0
        if is_new or result is not None:
            self._draw()
        else:
            self._draw_verdict()

    def on_entry_list_highlighted(self, event: EntryList.Highlighted) -> None:
        """Another row is explained."""
        event.stop()
        self._draw_detail()

    def action_next(self) -> None:
        """To the next step of the guided path."""
        self.shell.go("model")

    def action_copy(self) -> None:
        """The fix, or what was found where nothing needs mending."""
        row = self._row()
        if row is not None:
            self.app.copy_to_clipboard(row.fix or row.what)
            self.notify("Copied to the clipboard", timeout=2)

    def action_again(self) -> None:
        """One row."""
        row = self._row()
        if row is not None and self._work is None:
            self._look(row.id)

    def action_all_again(self) -> None:
        """Everything."""
        if self._work is None:
            self._look()

    async def action_export(self) -> None:
        """A file in the folder where the app was started."""
        text = json.dumps(self.doctor.record(), indent=1, ensure_ascii=False) + "\n"
        try:
            path = await asyncio.to_thread(_write, text)
        except OSError as error:
            self.notify(f"Not saved: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(f"Saved as {words.short_path(path)}", markup=False)

    def _look(self, only: str = "") -> None:
        self.doctor.begin(only)
        one = ["--row", only] if only else []
        self._work = self.shell.make_task(["doctor", "--json-lines", *one], limit_s=LIMIT_S)
        self._draw()

    def _row(self) -> DoctorRow | None:
        entry = self.query_one(EntryList).entry
        return self.doctor.rows.get(entry.key) if entry else None

    def _draw(self) -> None:
        entries = []
        for title, rows in self.doctor.groups():
            entries.append(Entry("", title))
            entries += [
                Entry(row.id, row.title, row.what, _glyph(row.state), _colour(row.state))
                for row in rows
            ]
        bad = next((row.id for row in self.doctor.rows.values() if row.state == "bad"), None)
        self.query_one(EntryList).show(entries, at=bad if self._show_worst else None)
        self._show_worst = False
        self._draw_verdict()
        self._draw_detail()

    def _draw_verdict(self) -> None:
        found, signs = self.doctor, glyphs.chosen()
        if found.is_running:
            done = sum(row.state in _COLOURS for row in found.rows.values())
            tried = next((r.what for r in found.rows.values() if r.state == "trying"), "")
            about = f", now {tried}" if tried else ""
            text = Content.styled(f"{signs.busy} Looking at this machine", "bold $accent")
            told = f"  {done} of {len(found.rows)}{about}" if found.rows else ""
            text += Content.styled(told, "$secondary")
        else:
            worst = "bad" if found.failure else found.worst
            colour = "success" if worst == "unknown" else _colour(worst)
            glyph = _glyph("ok" if worst == "unknown" else worst)
            text = Content.styled(f"{glyph} {words.safe(found.verdict)}", f"bold ${colour}")
            if found.looked_at_s is not None:
                at = words.clock(found.looked_at_s)
                text += Content.styled(f"  looked at {at}", "$secondary")
        self.query_one("#doctor-verdict", Static).update(text)

    def _draw_detail(self) -> None:
        row = self._row()
        panel = self.query_one("#doctor-about", Panel)
        panel.border_title = row.title if row else ""
        self.query_one("#doctor-detail", Static).update(_detail(row) if row else "")


def _detail(row: DoctorRow) -> Content:
    state = Content.styled(
        f"{_glyph(row.state)} {_WORDS.get(row.state, row.state)}", f"bold ${_colour(row.state)}"
    )
    lines = [state, Content(words.safe(row.what))]
    if row.meaning:
        lines.append(Content.styled(_sentence(words.safe(row.meaning)), "$secondary"))
    if row.fix:
        lines += [Content(""), Content.styled("What mends it", "bold")]
        lines.append(Content.styled(words.safe(row.fix), "$accent"))
    return Content("\n").join(lines)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _glyph(state: str) -> str:
    signs = glyphs.chosen()
    return {
        "ok": signs.ok, "warn": signs.warn, "bad": signs.error, "unknown": signs.unknown,
        "trying": signs.busy, "waiting": signs.idle,
    }.get(state, signs.unknown)  # fmt: skip


def _colour(state: str) -> str:
    return _COLOURS.get(state, "accent" if state == "trying" else "secondary")


def _write(text: str) -> Path:
    for number in range(1, 1000):
        path = here() / f"poros-doctor{f'-{number}' if number > 1 else ''}.json"
        try:
            with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(17, "too many of these files")
