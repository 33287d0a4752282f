"""All runs of this machine: open, compare, go on, clone, delete, report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from poros import runs as known_runs
from poros.errors import PorosError
from poros.runs import GONE
from poros_tui import glyphs, words
from poros_tui.engine.run_list import UNFINISHED, Listed
from poros_tui.screens.base import PorosScreen
from poros_tui.screens.runs_compare import CompareDialog
from poros_tui.screens.runs_detail import curve_of, detail
from poros_tui.state import AppState
from poros_tui.widgets import run_lines
from poros_tui.widgets.confirm import Answer, ConfirmDialog
from poros_tui.widgets.panel import Panel
from poros_tui.widgets.plot import Picture, Plot
from poros_tui.widgets.steady import Choices
from poros_tui.widgets.waiting import WaitingDialog

_REFRESH_TICKS = 8
NO_RUNS = (
    "No run yet.\n\n"
    "Every run that is started on this machine, here or by a command, stands in this list:"
    " with its curve, how it ended, and what can be done with it.\n\n"
    "Press 1 for the guided setup or the demo."
)


def _key(key: str, action: str, short: str, does: str, *, id: str = "") -> Binding:
    name = f"runs.{id or action}"
    return Binding(key, action, short, id=name, show=bool(short), tooltip=does)


class RunsScreen(PorosScreen):
    """The mode `runs`."""

    TITLE = "Runs"
    HELP = (
        "Every run that was started on this machine, the latest first. Enter opens one; mark one"
        " with the space bar and press c on another to compare the two."
    )
    LAYOUT_STYLE = "fill"
    key_names: Mapping[str, str] = {"select": "Open"}
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("space", "mark", "Mark", "Mark, or unmark, for a comparison"),
        _key("c", "compare", "Compare", "Compare with the marked run"),
        _key("g", "resume", "Go on", "Go on from the last checkpoint"),
        _key("k", "clone", "Clone", "Take its config for a new run"),
        _key("h", "report", "", "Write its HTML report"),
        _key("y", "copy_path", "", "Copy its folder's path", id="copy-path"),
        _key("delete,x", "delete", "Delete", "Delete its folder"),
    ]

    def __init__(self) -> None:
        """Nothing is known yet."""
        super().__init__()
        self._runs: tuple[Listed, ...] = ()
        self._marked: Path | None = None
        self._drawn: tuple[object, ...] = ()
        self._shown: object = None
        self._ticks = 0

    def body(self) -> ComposeResult:
        """Above the list, below what is known of the chosen one, and its curve."""
        with Panel("Runs", id="run-panel", term="run"):
            yield Static(id="run-head", classes="quiet")
            yield Choices(id="run-list")
            yield Static(NO_RUNS, id="run-none", classes="quiet")
        with Horizontal(id="run-below"):
            with Panel("Chosen", id="run-detail", term="run"):
                yield Static(id="run-facts")
            with Panel("Loss", id="run-curve", term="loss"):
                yield Plot(glyphs=glyphs.chosen(), id="run-plot")

    def on_mount(self) -> None:
        """The arrow keys work at once."""
        self.query_one("#run-list").focus()

    def on_tick(self, state: AppState) -> None:
        """Look at the runs every two seconds; draw what changed."""
        if self._ticks % _REFRESH_TICKS == 0:
            self.shell.runs.list.refresh()
        self._ticks += 1
        # A list that is not shown, since it is empty, has no width.
        lines, panel = self.query_one("#run-list"), self.query_one("#run-panel")
        room = lines.scrollable_content_region.width or panel.content_size.width
        found = self.shell.runs.list
        drawn = (found.version, room, int(self.shell.clock() // 60), found.was_read, self._marked)
        if drawn != self._drawn and (room or not found.latest):
            self._drawn, chosen = drawn, self._chosen
            self._runs = found.latest
            self._draw(room, chosen.run.path if chosen else None)

    def on_option_list_option_highlighted(self) -> None:
        """Another run is chosen."""
        self._draw_chosen()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click."""
        event.stop()
        self.shell.runs.open(self._runs[event.option_index])

    def action_mark(self) -> None:
        """The one that others are compared with."""
        chosen = self._chosen
        if chosen is not None:
            self._marked = None if self._marked == chosen.run.path else chosen.run.path
            self.on_tick(self.state)

    def action_compare(self) -> None:
        """Two runs side by side."""
        chosen = self._chosen
        other = next((one for one in self._runs if one.run.path == self._marked), None)
        if other is None or chosen is None or other is chosen:
            self.notify("Mark one run with the space bar, then press c on another.")
        elif GONE in (chosen.run.state, other.run.state):
            self.notify("The folder of one of them is gone.", severity="warning")
        else:
            self.app.push_screen(CompareDialog(other.run, chosen.run))

    def action_resume(self) -> None:
        """From the last checkpoint; without one it may begin anew."""
        chosen = self._chosen
        if chosen is not None and chosen.run.state in UNFINISHED:
            self.shell.runs.resume(chosen)
        elif chosen is not None:
            self.notify(_why_not_resumed(chosen), severity="warning")

    def action_clone(self) -> None:
        """Its settings, for a run of another name."""
        chosen = self._chosen
        if chosen is None:
            return
        try:
            self.shell.draft.begin_from(chosen.run.path, f"as {chosen.name} was")
        except PorosError as error:
            self.notify(str(error), title="Its config can't be taken", severity="warning",
                        markup=False)  # fmt: skip
            return
        self.shell.go("config")

    def action_report(self) -> None:
        """A web page that shows all of it."""
        chosen = self._chosen
        if chosen is not None and chosen.run.state != GONE:
            page = chosen.run.path / "report.html"
            arguments = ["report", str(chosen.run.path), "--json"]
            self.app.push_screen(
                WaitingDialog("Writing the report", str(page), arguments), partial(self._told, page)
            )

    def action_copy_path(self) -> None:
        """To the clipboard, through the terminal."""
        chosen = self._chosen
        if chosen is not None:
            self.app.copy_to_clipboard(str(chosen.run.path))
            self.notify(f"Copied: {chosen.run.path}", markup=False)

    def action_delete(self) -> None:
        """Ask first."""
        chosen = self._chosen
        if chosen is None:
            return
        if chosen.is_going:
            self.notify("It is at work: stop it first, on Train.", severity="warning")
            return
        size = words.gigabytes(chosen.run.num_bytes)
        self.app.push_screen(
            ConfirmDialog(
                f"Delete {words.safe(chosen.name)}?",
                [
                    Answer("", "Keep it"),
                    Answer(
                        "delete", f"Delete it, {size}", "Checkpoints and adapter too", "d", True
                    ),
                ],
                detail=words.short_path(words.safe(str(chosen.run.path)), 56),
            ),
            partial(self._delete, chosen),
        )

    @property
    def idle_actions(self) -> frozenset[str]:
        """All of them need a run, and some a second one, or one that can go on."""
        chosen = self._chosen
        if chosen is None:
            return frozenset({"select", "mark", "compare", "resume", "clone", "delete"})
        idle = {"resume"} if not chosen.can_resume else set()
        return frozenset(idle | ({"mark", "compare"} if len(self._runs) < 2 else set()))

    @property
    def _chosen(self) -> Listed | None:
        place = self.query_one("#run-list", OptionList).highlighted
        return self._runs[place] if place is not None and place < len(self._runs) else None

    def _draw(self, room: int, chosen: Path | None) -> None:
        lines = self.query_one("#run-list", OptionList)
        lines.clear_options()
        now_s = self.shell.clock()
        lines.add_options(
            [Option(run_lines.line(one, now_s, room, self._mark_of(one))) for one in self._runs]
        )
        paths = [one.run.path for one in self._runs]
        if paths:
            lines.highlighted = paths.index(chosen) if chosen in paths else 0
        self.query_one("#run-head", Static).update(run_lines.head(room))
        for name in ("#run-list", "#run-head", "#run-below"):
            self.query_one(name).display = bool(paths)
        self.query_one("#run-none").display = not paths and self.shell.runs.list.was_read
        self._draw_chosen()

    def _mark_of(self, one: Listed) -> str:
        return glyphs.chosen().best if one.run.path == self._marked else " "

    def _draw_chosen(self) -> None:
        chosen = self._chosen
        if chosen is None or (shown := (chosen, self._marked)) == self._shown:
            return
        self._shown = shown
        self.query_one("#run-detail").border_title = words.safe(chosen.name)
        self.query_one("#run-facts", Static).update(detail(chosen, self.shell.clock()))
        self.query_one("#run-plot", Plot).show(Picture(curves=tuple(curve_of(chosen.run))))

    async def _delete_in_thread(self, listed: Listed) -> None:
        try:
            left = await asyncio.to_thread(known_runs.remove_run, listed.run)
        except PorosError as error:
            self.notify(str(error), severity="error", timeout=12, markup=False)
            return
        kept = f"; kept what is no run's: {', '.join(left)}" if left else ""
        self.notify(f"Deleted {words.safe(listed.name)}{words.safe(kept)}", markup=False)
        self.shell.runs.list.refresh()

    def _delete(self, listed: Listed, answer: str | None) -> None:
        if answer == "delete":
            followed = self.state.followed
            if followed is not None and followed.folder == listed.run.path:
                self.shell.runs.follow(None)
            self.run_worker(self._delete_in_thread(listed))

    def _told(self, page: Path, answer: object) -> None:
        if answer is not None:
            self.app.copy_to_clipboard(str(page))
            self.notify(f"{page}\nIts path is copied.", title="Report", timeout=10, markup=False)


def _why_not_resumed(listed: Listed) -> str:
    if listed.is_going:
        return "It is at work already: Enter shows it."
    if listed.run.state == GONE:
        return "Its folder is gone."
    return "It is done; clone its config for another run."
