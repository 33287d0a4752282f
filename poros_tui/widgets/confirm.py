"""A question with its answers: asked before something is lost, and when a run is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from poros_tui.widgets.steady import Choices, Dialog


@dataclass(frozen=True, slots=True)
class Answer:
    """One way out of a question.

    Attributes:
        value: What the dialog gives back.
        label: What it does, as a verb: ``Stop and save``.
        note: What that means, in a few words.
        key: A letter that chooses it; empty: none.
        loses: It loses something: drawn as a warning.
    """

    value: str
    label: str
    note: str = ""
    key: str = ""
    loses: bool = False


class ConfirmDialog(Dialog[str]):
    """Gives the chosen answer's value; escape gives ``""``. The first answer is chosen by Enter.

    ``self.app.push_screen(ConfirmDialog("Delete this run?", [...]), self._deleted)``, or in a
    worker ``await self.app.push_screen_wait(...)``.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape",
            "answer('')",
            "Back",
            id="dialog.back",
            tooltip="In a question: back, nothing happens",
        ),
        Binding(
            "ctrl+c",
            "app.interrupt",
            show=False,
            id="dialog.interrupt",
            tooltip="In a question about leaving: stop the run and save",
        ),
    ]

    def __init__(self, question: str, answers: Sequence[Answer], detail: str = "") -> None:
        """``detail`` says what is at stake, in one or two sentences."""
        super().__init__()
        self._question, self._answers, self._detail = question, list(answers), detail

    def compose(self) -> ComposeResult:
        """Question, detail, answers."""
        with Vertical(classes="dialog"):
            yield Static(self._question, classes="dialog-title", markup=False)
            if self._detail:
                yield Static(self._detail, classes="dialog-detail", markup=False)
            yield Choices(*map(_option, self._answers), id="answers")

    def on_mount(self) -> None:
        """The keyboard is in the answers."""
        self.query_one(OptionList).focus()

    def on_key(self, event: events.Key) -> None:
        """An answer's own letter."""
        for answer in self._answers:
            if answer.key and event.key == answer.key:
                # The screen below has keys of its own, and would get this one too.
                event.stop()
                self.dismiss(answer.value)
                return

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click."""
        event.stop()
        self.dismiss(str(event.option.id))

    def action_answer(self, value: str) -> None:
        """Close with a value."""
        self.dismiss(value)


def _option(answer: Answer) -> Option:
    label = Content.styled(answer.label, "bold $warning" if answer.loses else "bold")
    key = Content.styled(f"  {answer.key}", "$accent") if answer.key else Content("")
    note = Content.styled(f"\n{answer.note}", "$quiet") if answer.note else Content("")
    return Option(label + key + note, id=answer.value)
