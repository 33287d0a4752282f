"""What is learned: the rows, how they are read, which tokens are trained."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Input, Static

from poros.demo_settings import is_demo_data, train_path
from poros.errors import PorosDataError
from poros.home_paths import here
from poros_tui import words
from poros_tui.engine.tasks import Task
from poros_tui.screens.chooser import ChooserScreen, Record
from poros_tui.screens.data_facts import (
    examples,
    facts,
    first_trained,
    lengths_of,
    raw_text,
    sample_text,
    verdict,
    wants_skipping,
)
from poros_tui.screens.verdict import Verdict, VerdictLine, failed
from poros_tui.state import AppState
from poros_tui.widgets.entry_list import Entry, EntryList
from poros_tui.widgets.facts import Fact, Facts
from poros_tui.widgets.histogram import Histogram
from poros_tui.widgets.panel import Panel
from poros_tui.widgets.path_dialog import Found, entry_of, list_data

RAW_LIMIT_S = 120.0
COUNT_LIMIT_S = 1800.0
"""A large data set is tokenised as a whole."""
NUM_SAMPLES = 20

_AS_TYPED = "typed:"
_MOST_HERE = 20
_SETTINGS = ("max_seq_length", "train_on", "overlong", "on_bad_line")
_HELP = (
    "A file with one example a line (JSONL), a JSON list, CSV or Parquet, or the name of a data set"
    " on the Hub. How rows are read is found from their keys; nothing is changed."
)
_SAMPLE_HELP = (
    "One example as the model will see it. What stands in « » is trained: the model learns to say"
    " it; the rest is only read."
)
_OWN_ROWS = "Your own: o opens a file, b goes to the list."
_LENGTHS_HELP = (
    "How long the samples are, in tokens. What is longer than max_seq_length is cut there; with a"
    " smaller one a run needs less memory. It is a setting of Config; l makes it as long as needed."
)


class DataScreen(ChooserScreen):
    """The mode `data`: a list to choose from, then what becomes of the chosen rows.

    Its record has raw rows at first, then what is known of the tokens.
    """

    TITLE = "Data"
    HELP = _HELP
    PLACEHOLDER = "a file such as rows.jsonl, or a data set's name on the Hub"
    DIALOG = (
        "Choose a file of rows",
        "JSONL, JSON, CSV or Parquet; Enter opens a folder or takes a file.",
    )
    CSS_PATH: ClassVar = ["../styles/chooser.tcss", "../styles/data.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "take", "Take it", id="data.take", tooltip="Take these rows, go on to Config"
        ),
        Binding("n", "turn(1)", "Next", id="data.next", tooltip="The next sample"),
        Binding("p", "turn(-1)", id="data.previous", tooltip="The sample before", show=False),
        Binding("l", "lengthen", "Cut none", id="data.lengthen",
                tooltip="Set max_seq_length so that no sample is cut"),
        Binding("s", "skip", "Skip bad", id="data.skip",
                tooltip="Leave out lines that can't be read"),
        Binding("slash", "type", "Type", id="data.type", tooltip="Type a file's path or a name"),
        Binding("o", "open", "File", id="data.open", tooltip="Choose a file of this computer"),
        Binding("c", "copy", "Copy", id="data.copy", tooltip="Copy what mends it"),
        Binding("b", "back", "Others", id="data.back", tooltip="Back to the list"),
        Binding("x", "cancel", "Cancel", id="data.cancel", tooltip="Stop counting tokens"),
    ]  # fmt: skip

    def __init__(self) -> None:
        """Nothing is looked at."""
        super().__init__()
        self._asked_with: tuple[str, ...] = ()
        self._counted_with: tuple[str, ...] = ()
        self._raw: Task | None = None
        self._count: Task | None = None
        self._turned = 0
        self._here: list[Entry] = []

    def choices(self) -> ComposeResult:
        """Rows to begin with, and how rows may look."""
        choose = EntryList(title_width=34, id="data-list")
        yield Panel("Rows to begin with", choose, id="data-known", help=_HELP)
        yield Panel("How rows may look", Static(examples()), id="data-examples", help=_HELP)

    def report(self) -> ComposeResult:
        """What becomes of them, their lengths, one of them."""
        with Vertical(id="data-left"):
            yield Panel("What becomes of it", Facts(id="data-facts"), id="data-about", help=_HELP)
            lengths = Histogram(id="data-histogram")
            yield Panel("Lengths", lengths, id="data-lengths", help=_LENGTHS_HELP)
        sample = VerticalScroll(Static(id="data-text"), id="data-scroll")
        yield Panel("Sample", sample, id="data-sample", help=_SAMPLE_HELP)

    def on_mount(self) -> None:
        """The list; what was chosen before is looked at with the first tick."""
        super().on_mount()
        self.query_one(EntryList).focus()
        self.draw_list()
        self.run_worker(self._look_around(), exclusive=True, exit_on_error=False)

    async def _look_around(self) -> None:
        found = await asyncio.to_thread(_data_files, here())
        self._here = [entry_of(one, choice_sign=False) for one in found]
        self.draw_list()

    def on_tick(self, state: AppState) -> None:
        """Answers that came; what another model or length would make of the rows is asked anew."""
        super().on_tick(state)
        self.shell.draft.look_up(state.machine)
        if not self.asked and state.data:
            self.ask(state.data)
        elif self.asked and self._asked_with != self._policy():
            self.ask(self.asked)
        self._begin_count()
        if self._raw is not None and self._raw.result is not None:
            result, self._raw = self._raw.result, None
            self._take_raw(result.document, result.error)
        if self._count is not None and self._count.result is not None:
            result, self._count = self._count.result, None
            self._take_count(result.document, result.error)
        self._draw_busy()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the field: what was typed."""
        if name := self.submitted(event):
            self.ask(name)

    def on_entry_list_chosen(self, event: EntryList.Chosen) -> None:
        """One of the list."""
        event.stop()
        self.ask(event.entry.key.removeprefix(_AS_TYPED))

    def list_folder(self, folder: Path) -> list[Found]:
        """What can be chosen in a folder."""
        return list_data(folder)

    def judge(self, record: Record) -> Verdict:
        """Whether it can be learned from."""
        return verdict(record)

    def told_facts(self, record: Record) -> list[Fact]:
        """What becomes of the rows."""
        return list(facts(record))

    def ask(self, name: str) -> None:
        """Look at rows: as they stand at once, their tokens where there is a model."""
        self.take_up(name)
        self._turned, self._asked_with, self._counted_with = 0, self._policy(), ()
        try:
            self.shell.draft.lookups.refuse_missing(name)
        except PorosDataError as error:  # told now: a child would take seconds to say so
            self._counted_with = self._with()
            self.refuse({"error": error.record()})
            return
        self._count = None
        raw = ["data", name, "--json", *self._policy()]
        self._raw = self.shell.make_task(raw, limit_s=RAW_LIMIT_S)
        self._draw_busy()

    def _begin_count(self) -> None:
        """Count tokens, if that was not done so; the length hangs on what the model needs."""
        wanted = self._with()
        if not self.asked or not self.state.model or self._counted_with == wanted:
            return
        if self.shell.draft.unchecked == "model":
            return
        if self._count is not None:
            self._count.cancel()
        self._counted_with = wanted
        command = ["data", self.asked, "-m", self.state.model, "--json", *self._options()]
        command += ["--samples", str(NUM_SAMPLES)]
        self._count = self.shell.make_task(command, limit_s=COUNT_LIMIT_S)

    def action_take(self) -> None:
        """The rows are chosen."""
        if self.is_good:
            self.state.update(data=self.asked)
            self.state.done.add("data")
            self.shell.go("config")

    def action_turn(self, by: int) -> None:
        """Another sample."""
        self._turned += by
        self._draw_sample()

    def action_lengthen(self) -> None:
        """As long as the longest sample; Config tells what that takes."""
        longest = (self.record or {}).get("longest", 0)
        if longest:
            self.shell.draft.enter("max_seq_length", str(longest))
            self.notify(f"max_seq_length is {longest:,} now; Config says what it takes", timeout=4)

    def action_skip(self) -> None:
        """Leave bad lines out."""
        if wants_skipping(self.record):
            self.shell.draft.enter("on_bad_line", "skip")
            self.notify("Bad lines are left out now: On bad line in Config", timeout=4)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do nothing now are not shown."""
        is_report = self.has_class("-report")
        can = {
            "take": is_report and self.is_good,
            "turn": is_report,
            "lengthen": is_report and bool((self.record or {}).get("overlong")),
            "skip": wants_skipping(self.record),
            "back": is_report,
            "copy": self.is_built and bool(self.query_one(VerdictLine).way_out),
            "cancel": self._raw is not None or self._count is not None,
        }
        return can.get(action, True)

    def cancel(self) -> None:
        """Stop the children that look."""
        for task in (self._raw, self._count):
            if task is not None:
                task.cancel()

    def _options(self) -> tuple[str, ...]:
        """Settings that decide what becomes of rows, as Config has them for these, as flags."""
        chosen = self.shell.draft.values(self.asked)
        return tuple(
            f"--{name.replace('_', '-')}={chosen[name]}" for name in _SETTINGS if name in chosen
        )

    def _policy(self) -> tuple[str, ...]:
        """What raw rows hang on."""
        return tuple(flag for flag in self._options() if flag.startswith("--on-bad-line"))

    def _with(self) -> tuple[str, ...]:
        """What the tokens hang on beside the rows."""
        return (self.asked, self.state.model, *self._options())

    def _take_raw(self, document: Any, error: str) -> None:
        if isinstance(document, dict) and document.get("raw"):
            if self.record is None:
                self._show_rows(document)
        elif self.record is None and error != "cancelled":
            record = failed(document, error)
            if record["error"].get("code") == "E-data" and self._count is not None:
                # Counting reads the same lines, after seconds of imports.
                self._count.cancel()
                self._count = None
            if self._count is None:
                self.refuse(record)

    def _take_count(self, document: Any, error: str) -> None:
        if isinstance(document, dict) and "sample" in document:
            self._turned = 0
            self.shell.draft.lengths = lengths_of(document, self.asked, self.state.model)
            self._show_rows(document)
        elif error == "cancelled":
            self._say_of_raw("Tokens were not counted")
        elif self.record is None:
            self.refuse(failed(document, error))
        else:
            told = failed(document, error)["error"]
            if told.get("code") in ("E-data", "E-model"):
                self.say(verdict({"error": told}))
                self.record = None
            else:
                self._say_of_raw(told["message"], told["remediation"])

    def _say_of_raw(self, text: str, way_out: str = "") -> None:
        """Rows are there, but no tokens."""
        if self.is_good:
            self.say(Verdict("warn", f"Rows as they stand; {text}", way_out))

    def _show_rows(self, record: dict[str, Any]) -> None:
        found = verdict(record)
        if record.get("raw") and found.state == "ok" and not self.state.model:
            found = Verdict("ok", found.text, "Choose a model to see tokens and what is trained.")
        if is_demo_data(self.asked) and found.state == "ok":
            # They come with the demo's model, unasked.
            found = Verdict("ok", f"The demo's rows: {found.text}", _OWN_ROWS)
        self.show(record, found)
        self.lead_to(self.query_one("#data-scroll"))
        lengths = self.query_one("#data-lengths")
        lengths.display = "lengths" in record
        if "lengths" in record:
            limit, cut = record["max_seq_length"], record["num_truncated"]
            self.query_one(Histogram).show(record["lengths"], limit=limit, num_cut=cut)
            lengths.border_title = f"Lengths, at most {limit:,}"
        self._draw_sample()

    def _draw_busy(self) -> None:
        task = self._count or self._raw
        if task is None or (self.record is not None and not self.is_good):
            return
        about = "Counting tokens with the model's tokenizer" if self.record else "Reading the rows"
        self.query_one(VerdictLine).show_busy(about, task.elapsed_s)
        self.refresh_bindings()

    def _draw_sample(self) -> None:
        record = self.record or {}
        shown = record.get("samples") or record.get("rows") or []
        if not shown:
            return
        at = self._turned % len(shown)
        one, panel = shown[at], self.query_one("#data-sample", Panel)
        what = "Row" if record.get("raw") else "Sample of row"
        tokens = f", {one['num_tokens']:,} tokens" if "num_tokens" in one else ""
        panel.border_title = f"{what} {one['line']}{tokens} ({at + 1} of {len(shown)})"
        text = raw_text(one) if record.get("raw") else sample_text(one)
        self.query_one("#data-text", Static).update(text)
        # What is trained is what one wants to see, with the line that leads to it.
        top = 0 if record.get("raw") else max(0, first_trained(one) - 2)
        scroll = self.query_one("#data-scroll", VerticalScroll)
        self.call_after_refresh(scroll.scroll_to, 0, top, animate=False)

    def draw_list(self) -> None:
        """The demo's rows, those used before, files that lie here."""
        typed = self.typed
        entries = [Entry(f"{_AS_TYPED}{typed}", typed, "look at this")] if typed else []
        demo = str(train_path())
        about = "174 answers in one voice"
        entries += [Entry("", "To try it out"), Entry(demo, "the demo's rows", about)]
        used = [one for one in self.state.recent_data if one != demo]
        if used:
            entries.append(Entry("", "Used before"))
            entries += [Entry(one, words.short_path(one)) for one in used]
        if self._here:
            entries.append(Entry("", f"In {words.short_path(here())}"))
            entries += self._here
        self.query_one(EntryList).show(entries)


def _data_files(folder: Path) -> list[Found]:
    try:
        return [one for one in list_data(folder) if one.is_choice][:_MOST_HERE]
    except OSError:
        return []
