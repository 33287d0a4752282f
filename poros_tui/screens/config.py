"""How it is trained: five questions, the rest folded, effects shown live."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Button, Collapsible, Static

from poros.config import PorosConfig
from poros.home_paths import typed_path
from poros_tui import glyphs
from poros_tui.screens import config_told
from poros_tui.screens.base import PorosScreen
from poros_tui.screens.config_cost import Cost, cost, effect
from poros_tui.screens.config_draft import Draft
from poros_tui.screens.config_effects import Effects
from poros_tui.screens.config_files import ConfigFiles
from poros_tui.screens.config_form import Checked, Form, fields, groups
from poros_tui.screens.config_presets import CPU, HERE
from poros_tui.screens.config_rows import FormScroll, Row, setting_row
from poros_tui.screens.config_start import Starter
from poros_tui.screens.config_wizard import ASKED, Wizard
from poros_tui.state import AppState
from poros_tui.widgets.panel import Panel

EFFORT, CARD = "?effort", "?card"
ON_START = "Enter starts the training. It goes on after you leave Poros."


class ConfigScreen(PorosScreen):
    """The mode `config`."""

    TITLE = "Config"
    CSS_PATH = "../styles/config.tcss"
    LAYOUT_STYLE = "fill"
    HELP = (
        "Five questions are enough: Enter takes an answer and goes on, the arrows change it. "
        "All other settings lie folded below, each with what it does to memory and time."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f5,s", "start", "Start", id="config.start", tooltip="Start training"),
        Binding("f6,v", "preview", "As a file", id="config.preview",
                tooltip="The same as a file and as a command; what differs from the preset"),
        Binding("f7,x", "mend", "Mend", id="config.mend", tooltip="Mend the first problem"),
        Binding("ctrl+r,r", "reset", "Reset", id="config.reset", show=False,
                tooltip="This setting back to the preset's value"),
        Binding("ctrl+s,w", "save", "Save", id="config.save", tooltip="Save as a YAML file"),
        Binding("ctrl+o,o", "load", "Open", id="config.load", show=False,
                tooltip="Open a YAML file"),
        Binding("f8,a", "all", "All", id="config.all",
                tooltip="Open or fold all settings"),
    ]  # fmt: skip

    def __init__(self) -> None:
        """Nothing is looked up yet."""
        super().__init__()
        self.checked = Checked(None)
        self.cost = Cost()
        self.files = ConfigFiles(self)
        self.starter = Starter(self)
        self._effects = Effects()
        self._key = ""
        self._version = 0
        self._unchecked = ""
        self._side_told: dict[str, Content] = {}
        self.rows: dict[str, Row] = {}
        self.sections: dict[str, Collapsible] = {}

    @property
    def draft(self) -> Draft:
        """What the app's screens put together."""
        return self.shell.draft

    @property
    def wizard(self) -> Wizard:
        """Its answers."""
        return self.draft.wizard

    def body(self) -> ComposeResult:
        """The form, what is told beside it, and the way on."""
        self.draft.take_over(self.state)
        self._version = self.draft.version
        self.rows = {row.key: row for row in self._questions()}
        with Horizontal(id="config"):
            with FormScroll(id="form"):
                questions = list(self.rows.values())
                yield Panel("Five questions", *questions, id="questions", help=self.HELP)
                for group, members in groups().items():
                    asked = sum(each.key in ASKED for each in members)
                    if len(members) > asked:
                        section = Collapsible(title=group, id=f"group-{group}", classes="group")
                        self.sections[group] = section
                        yield section
                yield Panel("What these answers set", Static(id="meaning"), id="meaning-panel")
            with Vertical(id="side"):
                yield Panel("What it takes", Static(id="cost"), id="cost-panel", term="VRAM")
                yield Panel("This setting", Static(id="about"), id="about-panel")
                yield Panel("To mend", Static(id="problems"), id="problems-panel")
        with Horizontal(id="start-bar"):
            yield Static(id="verdict")
            yield Button("Start training", id="start", compact=True, action="screen.start")

    def on_mount(self) -> None:
        """The first question that no other screen has answered has the keyboard."""
        self.is_built = True
        self.files.open_named()
        self.show_all()
        first = "model_name_or_path" if not self.wizard.model else "dataset"
        self.rows[EFFORT if self.wizard.model and self.wizard.dataset else first].take_keyboard()

    def on_tick(self, state: AppState) -> None:
        """What other screens chose, what was looked up, what the machine has left."""
        draft = self.draft
        draft.take_over(state)
        has_news = draft.look_up(state.machine, typed=self._key)
        if self._version != draft.version:
            self.loaded()
        elif has_news or self._effects.take_news() or self._unchecked != draft.unchecked:
            self.show_all()

    def on_fitted(self) -> None:
        """Wide windows have room for more words."""
        self.show_all()

    @property
    def idle_actions(self) -> frozenset[str]:
        """Nothing to mend."""
        is_wrong = self.checked.problems or self.cost.refusal
        return frozenset() if is_wrong else frozenset({"mend"})

    def show_all(self) -> None:
        """Everything that hangs on the entries."""
        self.checked = self.wizard.check()
        if self.checked.config is not None:
            self.cost = self._cost(self.checked.config)
            keys = [key for key in self.rows if key in fields()]
            self._effects.ask(self.checked.config, self.cost, self._cost, keys)
        form = self.wizard.form()
        for row in self.rows.values():
            self._show_row(row, form)
        self._show_groups()
        self._show_side()
        self._unchecked = self.draft.unchecked
        if self.checked.config is not None:
            self.draft.leave(self.state, self.checked.config)

    def on_row_entered(self, event: Row.Entered) -> None:
        """An answer or a setting changed."""
        if event.key == EFFORT:
            self.wizard.effort = event.text
        elif event.key == CARD:
            self.wizard.card = event.text
        else:
            self.wizard.enter(event.key, event.text)
        self.show_all()

    def on_row_done(self, event: Row.Done) -> None:
        """Enter goes to the next question; after the last one to the button."""
        if self.focused is None or event.row not in self.focused.ancestors:
            return  # a second Enter came before the first one had moved the keyboard
        if event.row.key == "output_dir":
            self.query_one("#start", Button).focus()
        else:
            self.focus_next()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """Tell of the setting that has the keyboard."""
        row = next((n for n in event.widget.ancestors_with_self if isinstance(n, Row)), None)
        self._key = row.key if row is not None else ""
        self._show_side()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """A section's rows are made when it is opened for the first time."""
        await self._fill(event.collapsible)
        self.show_all()

    async def action_all(self) -> None:
        """Open all sections, or fold them."""
        fold = any(not section.collapsed for section in self.sections.values())
        for section in self.sections.values():
            if not fold:
                await self._fill(section)
            section.collapsed = fold
        self.show_all()

    def action_reset(self) -> None:
        """The focused setting."""
        if self._key in (*fields(), EFFORT, CARD):
            self.wizard.reset(self._key)
            if self._key in fields():
                self.rows[self._key].put(self.wizard.form().text(self._key))
            self.show_all()

    def action_mend(self) -> None:
        """Apply the first change that is known; else go to the first problem's entry."""
        for problem in self.checked.problems:
            for key, text in problem.change.items():
                self.wizard.enter(key, text)
                if key in self.rows:
                    self.rows[key].put(text)
            if problem.change:
                self.show_all()
                return
        if self.checked.problems:
            self.call_later(self.go_to_problem)
        elif self.cost.refusal and self.wizard.drop_sizes():
            self.loaded()
            self.notify("Lengths and batches are back to what fits", timeout=3)

    async def go_to_problem(self) -> None:
        """Open the section of the first problem and give its entry the keyboard."""
        keys = [key for problem in self.checked.problems for key in problem.keys]
        key = keys[0] if keys else self.draft.wrong_key
        if key in fields() and key not in ASKED:
            section = self.sections[fields()[key].group]
            await self._fill(section)
            section.collapsed = False
        if key in self.rows:
            self.rows[key].take_keyboard()

    def action_preview(self) -> None:
        """As a file."""
        self.files.preview()

    def action_save(self) -> None:
        """Ask for a name."""
        self.files.save()

    def action_load(self) -> None:
        """Ask which."""
        self.files.load()

    def action_start(self) -> None:
        """Start, or say why not; what is only doubtful is asked."""
        self.draft.look_up(self.state.machine)  # at once, whatever has the keyboard
        self.show_all()
        told = self._verdict()
        if told.kind == "ok":
            self.starter.start()
        elif told.kind in ("warn", "busy"):
            self.app.push_screen(config_told.doubt(told), self._answered)
        else:
            self.notify(told.told, title="It can't start yet", severity="error", markup=False)
            self.draft.check_again()
            self.call_later(self.go_to_problem)

    def loaded(self) -> None:
        """Other settings were put into the wizard: every entry shows them."""
        form = self.wizard.form()
        for row in self.rows.values():
            if row.key in fields():
                row.put(form.text(row.key))
        self._version = self.draft.version
        if self.is_built:
            self.show_all()

    def _answered(self, value: str | None) -> None:
        if value == "start":
            self.starter.start()

    def _questions(self) -> list[Row]:
        wizard = self.wizard
        return [
            Row("model_name_or_path", "1 Model", wizard.model, told=_told("model_name_or_path"),
                placeholder="a folder or a Hub name"),
            Row("dataset", "2 Data", wizard.dataset, told=_told("dataset"),
                placeholder="a file or a Hub name"),
            Row(EFFORT, "3 How thorough", wizard.effort, words=wizard.efforts,
                told="How much is learned. More takes longer and needs more data to pay."),
            Row(CARD, "4 Which card", HERE, words=wizard.cards,
                told="Lengths and batches are chosen so that they fit this card."),
            Row("output_dir", "5 Where to", wizard.output_dir, told=_told("output_dir"),
                placeholder="the run's folder"),
        ]  # fmt: skip

    async def _fill(self, section: Collapsible) -> None:
        members = groups()[str(section.id).removeprefix("group-")]
        new = [each for each in members if each.key not in self.rows]
        form = self.wizard.form()
        rows = {each.key: setting_row(each, form.text(each.key)) for each in new}
        self.rows |= rows
        if rows:
            await section.query_one(Collapsible.Contents).mount_all(rows.values())

    def _cost(self, config: PorosConfig) -> Cost:
        known = self.wizard.known
        return cost(config, known.model, known.computer, known.num_rows)

    def _verdict(self) -> config_told.Verdict:
        known = self.wizard.known
        return config_told.verdict(
            self.cost,
            self.checked.problems,
            known.computer,
            self.draft.why_not,
            self.draft.unchecked,
        )

    def _show_row(self, row: Row, form: Form) -> None:
        wizard, key = self.wizard, row.key
        wrong = self.checked.problem_of(key) is not None
        if key == EFFORT:
            row.show(wizard.effort, words=wizard.efforts, note=wizard.effort_note)
        elif key == CARD:
            own = wizard.cards[0] if wizard.card == HERE else wizard.card
            row.show(own, words=wizard.cards, note=self._card_note())
        elif key in ("model_name_or_path", "dataset"):
            is_data = key == "dataset"
            text = wizard.dataset if is_data else wizard.model
            told, is_bad = self.draft.lookups.told(text, is_data=is_data)
            if is_data and told and not is_bad:
                told = ", ".join(filter(None, (told, self._cut().partition(" of ")[0])))
            row.show(text, note=told, is_wrong=wrong or is_bad)
        elif key == "output_dir":
            row.show(wizard.output_dir, note=self._folder_note(), is_wrong=wrong)
        else:
            text = form.text(key)
            is_own = key in wizard.own
            row.show(text, note=self._effects.told(key), is_own=is_own, is_wrong=wrong)

    def _card_note(self) -> str:
        known, settings = self.wizard.known, self.wizard.preset().settings
        if self.wizard.card in (HERE, CPU) and not known.computer.card:
            return "no card here"
        if known.model is None:
            return ""
        batch = settings.get("per_device_batch_size", fields()["per_device_batch_size"].default)
        length = settings.get("max_seq_length", fields()["max_seq_length"].default)
        return f"{batch} x {length} tokens"

    def _folder_note(self) -> str:
        folder = typed_path(self.wizard.output_dir or ".")
        if (folder / "run.json").is_file():
            return "a run is there: it goes on from its last checkpoint"
        return "" if not folder.is_dir() else "this folder is there already"

    def _show_groups(self) -> None:
        for group, section in self.sections.items():
            keys = [each.key for each in groups()[group] if each.key not in ASKED]
            wrong = any(self.checked.problem_of(key) for key in keys)
            own = sum(key in self.wizard.own for key in keys)
            told = f"{group[0].upper()}{group[1:]}: {len(keys)} settings"
            told += f", {own} changed" if own else ""
            told += f"  {glyphs.chosen().error}" if wrong else ""
            section.title = told
            section.set_class(wrong, "-wrong")

    def _show_side(self) -> None:
        if not self.is_built:
            return
        computer, each = self.wizard.known.computer, fields().get(self._key)
        narrow = self.has_class("-narrow")
        uncounted = config_told.uncounted(self.draft.known_lengths, self.wizard.dataset)
        room = self.size.width - 4 if narrow else 0
        told = self.focused_told() if each is None else ""
        now = ""
        if each is not None and self.checked.config is not None:
            now = effect(each.key, self.checked.config, self.cost, self._cost)
            now = uncounted if each.key == "dataset" and uncounted else now
        problems = self.checked.problems
        verdict = config_told.STARTING if self.starter.is_starting else self._verdict()
        self.query_one("#problems-panel").display = bool(problems)
        for name, content in (
            ("cost", config_told.cost_told(self.cost, computer, self._cut(), uncounted, room)),
            ("about", config_told.about(each, now, told, narrow=narrow)),
            ("meaning", config_told.meaning(self.wizard.form(), max(20, self.size.width - 80))),
            ("problems", config_told.problem_lines(problems, "f7")),
            ("verdict", verdict.content()),
        ):
            told_before = self._side_told.get(name)
            if told_before is None or not told_before.is_same(content):
                self._side_told[name] = content
                self.query_one(f"#{name}", Static).update(content)

    def _cut(self) -> str:
        return config_told.cut_told(self.draft.known_lengths, self.checked.config)

    def focused_told(self) -> str:
        """What `?` would say, for rows that are no setting."""
        if self._key in self.rows:
            return self.rows[self._key].told
        for node in self.focused.ancestors_with_self if self.focused else ():
            if isinstance(node, Collapsible):
                return config_told.group_told(str(node.id).removeprefix("group-"))
        return ON_START if self.query_one("#start").has_focus else self.HELP


def _told(key: str) -> str:
    each = fields()[key]
    return f"{each.title}\n\n{each.description}\nIn the file: {key}"
