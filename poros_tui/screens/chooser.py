"""What Model and Data have in common: a name is typed or chosen, looked at, and taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.events import Key
from textual.widget import Widget
from textual.widgets import Input, Static

from poros.home_paths import here, typed_path
from poros_tui.screens.base import PorosScreen
from poros_tui.screens.verdict import Verdict, VerdictLine
from poros_tui.state import AppState
from poros_tui.widgets.entry_list import EntryList
from poros_tui.widgets.facts import Fact, Facts
from poros_tui.widgets.field import Field
from poros_tui.widgets.path_dialog import Found, PathDialog

Record = Mapping[str, Any]
_LONGEST_NAME = 4096
"""No path is longer; a whole text that is pasted is none."""


class ChooserScreen(PorosScreen):
    """A field, a verdict, and either a list to choose from or the report of the chosen one.

    The list shows while nothing is reported: the screen has the class ``-report`` else. Subclasses
    give all methods that raise `NotImplementedError` here.

    Attributes:
        PLACEHOLDER: Of the field.
        DIALOG: Title and hint of the dialog that finds files.
        asked: What is looked at.
        record: What is known of it; None: nothing yet.
    """

    LAYOUT_STYLE = "fill"
    PLACEHOLDER: ClassVar[str] = ""
    DIALOG: ClassVar[tuple[str, str]] = ("", "")

    def __init__(self) -> None:
        """Nothing is looked at."""
        super().__init__()
        self.asked = ""
        self.record: Record | None = None

    def choices(self) -> ComposeResult:
        """What is chosen from; hidden by a report."""
        raise NotImplementedError

    def report(self) -> ComposeResult:
        """What is told of the chosen one; hidden without."""
        raise NotImplementedError

    def judge(self, record: Record) -> Verdict:
        """What a record comes to."""
        raise NotImplementedError

    def told_facts(self, record: Record) -> Sequence[Fact]:
        """Its facts, the most important first."""
        raise NotImplementedError

    def list_folder(self, folder: Path) -> Sequence[Found]:
        """What the dialog shows of a folder.

        Raises:
            OSError: It can't be read.
        """
        raise NotImplementedError

    def ask(self, name: str) -> None:
        """Look at another one."""
        raise NotImplementedError

    def draw_list(self) -> None:
        """The list follows what is typed."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End the children that look."""
        raise NotImplementedError

    def body(self) -> ComposeResult:
        """A field, a verdict, and either the list or the report."""
        name = self.mode_name
        with Horizontal(classes="chooser-line"):
            yield Static(str(self.TITLE), classes="chooser-label")
            yield Field(
                placeholder=self.PLACEHOLDER, id=f"{name}-name", compact=True,
                max_length=_LONGEST_NAME,
            )  # fmt: skip
        yield VerdictLine(id=f"{name}-verdict")
        with Container(id=f"{name}-choose", classes="chooser-list"):
            yield from self.choices()
        with Container(id=f"{name}-report", classes="chooser-report"):
            yield from self.report()

    def on_unmount(self) -> None:
        """The app ends: so does what it asked."""
        self.cancel()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The list follows what is typed."""
        event.stop()
        if event.value != self.asked:
            self.show_list()

    def on_key(self, event: Key) -> None:
        """Down leaves the field for the list."""
        if event.key == "down" and isinstance(self.focused, Input):
            event.stop()
            self.query_one(EntryList).focus()

    def on_tick(self, state: AppState) -> None:
        """What other screens chose counts here too."""
        self.shell.draft.take_over(state)
        if self.record is not None:
            self._draw_facts(self.record)

    @property
    def typed(self) -> str:
        """What stands in the field, unless that is what is looked at."""
        typed = self.query_one(Input).value.strip()
        return "" if typed == self.asked else typed

    @property
    def is_good(self) -> bool:
        """It can be taken."""
        return self.record is not None and self.judge(self.record).state != "bad"

    def take_up(self, name: str) -> None:
        """Begin to look at another one."""
        self.cancel()
        is_typing = self.is_typing and self.typed != name
        self.asked, self.record = name, None
        if not is_typing:
            with self.prevent(Input.Changed):
                self.query_one(Input).value = name
        self.say(None)

    @property
    def is_typing(self) -> bool:
        """Another name is begun: neither the text nor the keyboard is taken away."""
        return isinstance(self.focused, Input) and bool(self.typed)

    def lead_to(self, widget: Widget) -> None:
        """Give something the keyboard, unless a name is, or is going to be, typed."""
        if not isinstance(self.focused, Input):
            widget.focus()

    def submitted(self, event: Input.Submitted) -> str:
        """The name that Enter ended; keys that came since, on a slow machine, are another one."""
        event.stop()
        if event.input.value == event.value:
            self.query_one(EntryList).focus()
        return event.value.replace("\0", "").strip()

    def say(self, found: Verdict | None) -> None:
        """Draw a verdict; the keys that it allows follow."""
        self.query_one(VerdictLine).show(found)
        self.refresh_bindings()

    def show_list(self, *, keep_verdict: bool = False) -> None:
        """In place of a report."""
        self.set_class(False, "-report")
        if not keep_verdict:
            self.say(None)
        self.draw_list()

    def show(self, record: Record, found: Verdict | None = None) -> None:
        """Its report, in place of the list; `found`: a verdict other than its own."""
        self.record = record
        self.set_class(True, "-report")
        self.say(found or self.judge(record))
        self._draw_facts(record)

    def refuse(self, record: Record) -> None:
        """Say what is wrong, above the list."""
        self.record = record
        self.say(self.judge(record))
        self.show_list(keep_verdict=True)

    def action_type(self) -> None:
        """Into the field, whose text is marked."""
        field = self.query_one(Input)
        self.set_focus(field)  # now: `Widget.focus` lets keys that come at once be commands
        field.select_all()

    def action_open(self) -> None:
        """By the dialog that finds files and folders."""
        is_path = self.asked.startswith(("/", "~", "."))
        start = typed_path(self.asked).parent if is_path else here()
        title, hint = self.DIALOG
        self.app.push_screen(PathDialog(title, hint, start, self.list_folder), self._opened)

    def action_copy(self) -> None:
        """What mends it, or else its name."""
        self.app.copy_to_clipboard(self.query_one(VerdictLine).way_out or self.asked)
        self.notify("Copied to the clipboard", timeout=2)

    def action_back(self) -> None:
        """The list again; what was asked is kept until another one is."""
        self.cancel()
        self.show_list()
        self.query_one(EntryList).focus()

    def action_cancel(self) -> None:
        """Ask no longer."""
        self.cancel()

    def _draw_facts(self, record: Record) -> None:
        self.query_one(Facts).show(self.told_facts(record), pairs=self.has_class("-narrow"))

    def _opened(self, path: str | None) -> None:
        if path:
            self.set_focus(self.query_one(EntryList))  # now, before what comes of it is led to
            self.ask(path)
