"""What came out of a run: adapter, samples before and after, export, report, a talk with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.content import Content
from textual.widgets import Input, Static

from poros.home_paths import typed_path
from poros_tui import glyphs
from poros_tui.engine.tasks import Task
from poros_tui.screens import result_told
from poros_tui.screens.base import PorosScreen
from poros_tui.screens.config_preview import PathDialog
from poros_tui.screens.result_chat import ChatPane
from poros_tui.screens.result_facts import Outcome, OutcomeReader
from poros_tui.screens.result_jobs import (
    Job,
    export_arguments,
    exported,
    report_arguments,
    reported,
)
from poros_tui.state import AppState
from poros_tui.widgets.panel import Panel

PANES = {
    "overview": "Overview",
    "samples": "Before and after",
    "talk": "Talk to it",
    "use": "Use it",
}
_MEASURES = 4
"""Ticks after news at which texts get their room anew."""
_ONWARD = {
    "samples": "Next: Samples",
    "talk": "Next: Chat",
    "use": "Next: Use it",
    "export": "Next: Export",
}


class ResultScreen(PorosScreen):
    """The mode `result`."""

    TITLE = "Result"
    CSS_PATH = "../styles/result.tcss"
    LAYOUT_STYLE = "fill"
    AUTO_FOCUS = ""  # keys are commands until a pane is chosen
    HELP = (
        "What came out of a run: how it went, answers before and after, a talk with the adapter,"
        " and how to take it elsewhere."
    )
    PARTS = (ChatPane,)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "onward", "Next", id="result.next-pane",
                tooltip="The next pane, and at last the export"),
        Binding("o", "pane('overview')", "Overview", id="result.overview", show=False,
                tooltip="How the run went"),
        Binding("b", "pane('samples')", "Samples", id="result.samples",
                tooltip="Answers before and after"),
        Binding("c", "pane('talk')", "Chat", id="result.chat", tooltip="Talk to the adapter"),
        Binding("u", "pane('use')", "Use it", id="result.use",
                tooltip="Where the adapter lies, how to load it"),
        Binding("left,p", "sample(-1)", "Previous", id="result.previous", show=False,
                tooltip="Previous sample"),
        Binding("right,n", "sample(1)", "Next", id="result.next", show=False,
                tooltip="Next sample"),
        Binding("e", "export", "Export", id="result.export",
                tooltip="Merge the adapter into its base, as an ordinary model folder"),
        Binding("h", "report", "Report", id="result.report", tooltip="Write the HTML report"),
        Binding("y", "copy", "Copy", id="result.copy", show=False,
                tooltip="Copy the lines that load the adapter"),
    ]  # fmt: skip

    def __init__(self) -> None:
        """Nothing is read yet."""
        super().__init__()
        self.reader = OutcomeReader()
        self.exporting = Job("merging, and comparing the answers", exported, self._begin)
        self.reporting = Job("writing the report", reported, self._begin)
        self._shown: Outcome | None = None
        self._drawn_for = (0, 0)
        self._index = 0
        self._num_measures = 0

    def body(self) -> ComposeResult:
        """Four panes; small windows show one of them."""
        yield Static(id="panes")
        with Container(id="result"):
            with Vertical(id="left"):
                yield Panel("Overview", Static(id="overview-text"), id="overview", term="run")
                yield Panel("Before and after", Static(id="sample"), id="samples", term="sample")
            with Vertical(id="right"):
                yield Panel("Talk to it", ChatPane(self._talk), id="talk", help=ChatPane.told)
                yield Panel("Use it", Static(id="use-text"), id="use", term="adapter")

    def on_mount(self) -> None:
        """The overview comes first."""
        self.add_class("-overview")

    def on_tick(self, state: AppState) -> None:
        """A run that was chosen or has grown; jobs; the talk."""
        self.reader.follow(state.run_folder)
        latest = self.reader.latest
        if self._num_measures:
            self._measure()
        has_news = self.exporting.tick() | self.reporting.tick()
        widths = self._widths()
        is_new = latest is not self._shown or widths != self._drawn_for
        if is_new or has_news or state.run_folder is None:
            if latest is None or self._shown is None or latest.folder != self._shown.folder:
                self._index = 0
            self._shown = latest
            self._show()
        chat = self.query_one(ChatPane)
        chat.tick()
        onward = {"onward": _ONWARD.get(self._next, "")}
        self.key_names = onward if chat.can_stop else onward | {"back": "Leave field"}

    def action_pane(self, name: str) -> None:
        """Show a pane, in small windows instead of the others; the keyboard goes there."""
        for other in PANES:
            self.set_class(other == name, f"-{other}")
        if name == "talk":
            self.set_focus(self.query_one("#question", Input))
        else:
            self.set_focus(None)
        self._show()

    def action_onward(self) -> None:
        """Overview, samples, talk, use, export; what is seen already is passed over."""
        name = self._next
        if name == "export":
            self.action_export()
        elif name:
            self.action_pane(name)

    @property
    def _next(self) -> str:
        """The pane that Enter shows; ``export``; empty: all was seen and done."""
        here = next((name for name in PANES if self.has_class(f"-{name}")), "overview")
        unseen = set(PANES) if self.has_class("-narrow") else {"overview", "talk"}
        has_adapter = self._shown is not None and self._shown.adapter is not None
        if not has_adapter:
            unseen.discard("talk")
        later = [name for name in list(PANES)[list(PANES).index(here) + 1 :] if name in unseen]
        if later:
            return later[0]
        return "export" if has_adapter and self.exporting.told is None else ""

    def on_chat_pane_ended(self) -> None:
        """Nothing more is asked."""
        self.action_onward()

    def action_sample(self, by: int) -> None:
        """Another sample; after the last comes the first."""
        if self._shown is not None and self._shown.asked:
            self._index = (self._index + by) % len(self._shown.asked)
            self._show()

    def action_export(self) -> None:
        """Ask where to."""
        found = self._with_adapter()
        if found is None:
            return
        name = found.folder.name
        suggested = _free(found.folder.with_name(f"{name}-merged"))
        self.app.push_screen(
            PathDialog("Write the merged model to which folder?", str(suggested),
                       button="Enter exports"),
            self._export_to,
        )  # fmt: skip

    def action_report(self) -> None:
        """Write it into the run's folder."""
        if self._shown is not None and not self._shown.error:
            self.reporting.start(report_arguments(self._shown.folder))
            self.action_pane("use")

    def action_copy(self) -> None:
        """Into the terminal's clipboard."""
        found = self._with_adapter()
        if found is not None:
            self.app.copy_to_clipboard("\n".join(found.load_lines))
            self.notify("The lines that load the adapter were copied", timeout=3)

    @property
    def idle_actions(self) -> frozenset[str]:
        """Without a run there is nothing, without its adapter neither talk nor folder."""
        found = self._shown
        if found is None:
            panes = {f"pane('{name}')" for name in PANES}
            return frozenset({*panes, "onward", "export", "report"})
        idle = set() if found.adapter else {"pane('talk')", "export"}
        return frozenset(idle if self._next else idle | {"onward"})

    def _begin(self, arguments: Sequence[str]) -> Task:
        return self.shell.make_task(arguments)

    def _talk(self, adapter: Path) -> Task:
        arguments = ["chat", str(adapter), "--json-lines", "--max-new-tokens", "256"]
        return self.shell.make_task(arguments, limit_s=None, interactive=True)

    def _export_to(self, name: str | None) -> None:
        if name and self._shown is not None:
            output = typed_path(name)
            self.exporting.start(export_arguments(self._shown.folder, output))
            self.action_pane("use")

    def _with_adapter(self) -> Outcome | None:
        found = self._shown
        if found is None or found.adapter is None:
            self.notify("There is no adapter yet: train first", severity="warning", timeout=4)
            return None
        return found

    def _show(self) -> None:
        if not self.is_built:
            return
        found = self._shown
        chat = self.query_one(ChatPane)
        chat.use(found.folder if found is not None and found.adapter is not None else None)
        self.query_one("#panes", Static).update(self._pane_bar())
        self._drawn_for = left, right = self._widths()
        overview = result_told.overview(found, self.state.run_folder, left)
        self.query_one("#overview-text", Static).update(overview)
        self.query_one("#sample", Static).update(result_told.sample(found, self._index))
        use = result_told.use(found, self.exporting.told, self.reporting.told, right)
        self.query_one("#use-text", Static).update(use)
        self._num_measures = _MEASURES
        if found is not None and found.state == "finished" and "train" not in self.state.done:
            self.state.update(done=self.state.done | {"train"})

    def _measure(self) -> None:
        """Again: on a busy machine Textual 8.2 may leave a new text the height of the last."""
        self._num_measures -= 1
        for name in ("#overview-text", "#sample", "#use-text"):
            self.query_one(name, Static).refresh(layout=True)

    def _widths(self) -> tuple[int, int]:
        """Of the panes whose lines are cut to fit; unknown ones count as narrow."""
        panes = (self.query_one(name) for name in ("#overview", "#use"))
        left, right = (max(30, pane.content_size.width) for pane in panes)
        return left, right

    def _pane_bar(self) -> Content:
        dot = f"  {glyphs.chosen().dot}  "
        parts = []
        for name, title in PANES.items():
            is_here = self.has_class(f"-{name}")
            key = "c" if name == "talk" else "b" if name == "samples" else name[0]
            style = "bold $accent" if is_here else "$secondary"
            parts.append(Content.assemble((f"{key} ", "$accent"), (title, style)))
        return Content(dot).join(parts)


def _free(folder: Path) -> Path:
    from poros.run_folder import free_name

    return free_name(folder) if folder.exists() else folder
