"""Which model: is it known, does it fit this card, what does it take."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from poros.demo_settings import train_path
from poros.model_suggestion import Suggestion
from poros_tui import words
from poros_tui.engine.tasks import Task
from poros_tui.screens import model_list
from poros_tui.screens.chooser import ChooserScreen, Record
from poros_tui.screens.model_facts import cell_words, facts, parts, verdict
from poros_tui.screens.verdict import Verdict, VerdictLine, failed
from poros_tui.state import AppState
from poros_tui.widgets.bars import Bars
from poros_tui.widgets.entry_list import EntryList
from poros_tui.widgets.facts import Fact, Facts
from poros_tui.widgets.fit_table import FitTable
from poros_tui.widgets.panel import Panel
from poros_tui.widgets.path_dialog import Found, list_models

CHECK_LIMIT_S = 60.0
SEARCH_LIMIT_S = 20.0
FETCH_LIMIT_S = 1800.0

_DEFAULT_TOKENS = 2048
_HELP = (
    "Type a model's name on the Hub, the address of its page, or a folder. Only its config and the"
    " headers of its weights are read; nothing large is fetched before training begins."
)
_PARTS_HELP = (
    "What the run would hold on the card, by what it is for: the plan that Poros would make for the"
    " length and the card under the cursor."
)
_FIT_HELP = (
    "How long samples may be on which card; what has no room on it streams through it. Tight: it"
    " fits, but within the error of the estimate."
)


class ModelScreen(ChooserScreen):
    """The mode `model`: a list to choose from, then what is known of the chosen one."""

    TITLE = "Model"
    HELP = _HELP
    PLACEHOLDER = "a name such as Qwen/Qwen2.5-7B-Instruct, words to search, or a folder"
    DIALOG = (
        "Choose a model's folder", "Enter opens a folder, or takes it if a model lies there."
    )  # fmt: skip
    CSS_PATH: ClassVar = ["../styles/chooser.tcss", "../styles/model.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "take", "Take it", id="model.take", tooltip="Take this model, go on to data"
        ),
        Binding("slash", "type", "Search", id="model.search", tooltip="Type a name or words"),
        Binding("o", "open", "Folder", id="model.open", tooltip="Choose a folder of this computer"),
        Binding("c", "copy", "Copy", id="model.copy", tooltip="Copy what mends it, or the name"),
        Binding("b", "back", "Others", id="model.back", tooltip="Back to the list of models"),
        Binding("x", "cancel", "Cancel", id="model.cancel", tooltip="Stop asking"),
    ]

    def __init__(self) -> None:
        """Nothing is asked yet."""
        super().__init__()
        self._work: Task | None = None
        self._kind = ""
        self._listing: Task | None = None
        self._found: list[Suggestion] = []
        self._on_hub: list[Suggestion] = []
        self._searched = ""
        self._wants_demo = False

    def choices(self) -> ComposeResult:
        """Models to begin with."""
        choose = EntryList(title_width=40, id="model-list")
        yield Panel("Models to begin with", choose, id="model-known", help=_HELP)

    def report(self) -> ComposeResult:
        """What it is; what fits; where the memory goes."""
        about = VerticalScroll(Facts(id="model-facts"), can_focus=False)
        yield Panel("What it is", about, id="model-about", help=_HELP)
        with Vertical(id="model-fits"):
            yield Panel(
                "What fits", FitTable(id="model-fit"), Static(id="model-cell"), help=_FIT_HELP
            )
            yield Panel("Where the card's memory goes", Bars(id="model-parts"),
                        id="model-memory", help=_PARTS_HELP)  # fmt: skip

    def on_mount(self) -> None:
        """The list; a model that was chosen before is looked at again."""
        self.show_list()
        self.query_one(EntryList).focus()
        self._list()
        if self.state.model:
            self.ask(self.state.model)

    def on_tick(self, state: AppState) -> None:
        """Answers that came."""
        super().on_tick(state)
        self._take_list()
        work = self._work
        if work is None:
            return
        if work.result is None:
            self._draw_busy()
            return
        self._work, kind = None, self._kind
        if kind == "search":
            self._take_search(work.result.document, work.result.error)
        elif kind == "fetch":
            self._take_fetched(work.result.document, work.result.error)
        else:
            self._take_report(work.result.document, work.result.error)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the field: the first entry of the list, which is what was typed or like it."""
        entry = self.query_one(EntryList).entry
        name = self.submitted(event)
        if name and name == self.asked:
            self.ask(name)
        elif name and entry is not None:
            self._choose(entry.key)

    def on_entry_list_chosen(self, event: EntryList.Chosen) -> None:
        """One of the list."""
        event.stop()
        self._choose(event.entry.key)

    def on_fit_table_moved(self, event: FitTable.Moved) -> None:
        """Another cell is explained."""
        event.stop()
        self._draw_cell()

    def list_folder(self, folder: Path) -> list[Found]:
        """What can be chosen in a folder."""
        return list_models(folder)

    def judge(self, record: Record) -> Verdict:
        """Whether it can be trained."""
        return verdict(record)

    def told_facts(self, record: Record) -> list[Fact]:
        """What it is and needs."""
        return list(facts(record, self.state.machine))

    def ask(self, name: str) -> None:
        """Look at a model."""
        self.take_up(name)
        machine = self.state.machine
        room = []
        if machine.card_total_bytes is not None:
            free = machine.card_total_bytes - (machine.card_used_bytes or 0)
            room = ["--vram", f"{max(free, 1) / 1e9:.3f}"]
        command = ["check", name, "--table", "--json", "--seq-len", str(self._tokens()), *room]
        self._begin("check", command, CHECK_LIMIT_S)

    def action_take(self) -> None:
        """The model is chosen."""
        if not self.is_good:
            return
        if self.state.model != self.asked:
            self.state.update(model=self.asked)
            is_demo = any(one.is_demo and one.name == self.asked for one in self._found)
            if is_demo and not self.state.data:
                self.state.update(data=str(train_path()))
        self.state.done.add("model")
        self.shell.go("data")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that do nothing now are not shown."""
        can = {
            "take": self.has_class("-report") and self.is_good,
            "back": self.has_class("-report") or self._work is not None,
            "copy": bool(self.asked),
            "cancel": self._work is not None,
        }
        return can.get(action, True)

    def cancel(self) -> None:
        """Stop the child that asks."""
        if self._work is not None:
            self._work.cancel()

    def on_unmount(self) -> None:
        """The list is waited for no longer."""
        if self._listing is not None:
            self._listing.cancel()

    def _choose(self, key: str) -> None:
        if key == model_list.DEMO:
            self._begin("fetch", ["demo", "--fetch-only", "--json"], FETCH_LIMIT_S)
        elif key.startswith(model_list.SEARCH):
            self._searched, self._on_hub = key.removeprefix(model_list.SEARCH), []
            command = ["models", "--hub", *self._searched.split(), "--json"]
            self._begin("search", command, SEARCH_LIMIT_S)
        else:
            self.ask(key.removeprefix(model_list.TYPED))

    def _begin(self, kind: str, command: list[str], limit_s: float) -> None:
        self.cancel()
        self._wants_demo = False  # what was asked for last counts
        self._kind = kind
        self._work = self.shell.make_task(command, limit_s=limit_s)
        self.say(None)
        self._draw_busy()

    def _list(self) -> None:
        """Ask for the models to begin with, in a child: a cache may lie on a slow disk."""
        self._listing = self.shell.make_task(["models", "--json"], limit_s=SEARCH_LIMIT_S)

    def _take_list(self) -> None:
        if self._listing is None or self._listing.result is None:
            return
        document, self._listing = self._listing.result.document, None
        self._found = model_list.read(document)
        self.draw_list()
        demo = next((one for one in self._found if one.is_demo), None)
        if self._wants_demo and demo is not None:
            self.ask(demo.name)
        self._wants_demo = False

    def _take_search(self, document: Any, error: str) -> None:
        if isinstance(document, list):
            self._on_hub = model_list.read(document)
            told = f"The Hub knows {len(self._on_hub) or 'no'} models with these words"
            self.say(Verdict("ok" if self._on_hub else "warn", told))
        else:
            self.say(verdict(failed(document, error)))
        self.show_list(keep_verdict=True)

    def _take_fetched(self, document: Any, error: str) -> None:
        if error:
            self.say(verdict(failed(document, error)))
        else:
            self._wants_demo = True
            self._list()

    def _take_report(self, document: Any, error: str) -> None:
        record = document if isinstance(document, dict) else failed(document, error)
        if "error" in record:
            self.refuse(record)
            return
        self.show(record)
        self.query_one("#model-fits").display = bool(record.get("table"))
        table = self.query_one(FitTable)
        table.show(record.get("table"), tokens=self._tokens())
        self._draw_cell()
        self.lead_to(table)

    def _tokens(self) -> int:
        """The length that the table begins at: Config's, once it has one."""
        found = self.state.values.get("max_seq_length")
        return found if isinstance(found, int) and found > 0 else _DEFAULT_TOKENS

    def draw_list(self) -> None:
        """Those that are here, used before, known, or found on the Hub."""
        listed = model_list.entries(
            self.typed,
            self._found,
            used=self.state.recent_models,
            on_hub=self._on_hub,
            searched=self._searched,
        )
        self.query_one(EntryList).show(listed)

    def _draw_busy(self) -> None:
        if self._work is None:
            return
        about = {"search": "Asking the Hub", "fetch": "Fetching the demo's model"}
        text = about.get(self._kind, f"Looking at {self.asked}")
        self.query_one(VerdictLine).show_busy(text, self._work.elapsed_s)

    def _draw_cell(self) -> None:
        fit = self.query_one(FitTable)
        if fit.table is None:
            return
        if fit.cell is not None:
            self.query_one(Bars).show(parts(fit.cell))
        head, text = cell_words(fit.table, fit.row, fit.column)
        said = Content.styled(words.safe(head), "bold") + Content(f"\n{words.safe(text)}")
        self.query_one("#model-cell", Static).update(said)
