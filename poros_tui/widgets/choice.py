"""A choice among words on one line: left and right change it, Enter takes it and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget

from poros_tui import glyphs


class Choice(Widget, can_focus=True):
    """One line, ``< word >``.

    Attributes:
        value: The chosen word.
        told: What `?` says.
    """

    DEFAULT_CSS = """
    Choice { height: 1; width: 1fr; color: $foreground; }
    Choice:focus { background: $accent 18%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "left",
            "step(-1)",
            "Previous",
            id="choice.previous",
            tooltip="In a choice: the word before",
            show=False,
        ),
        Binding(
            "right,space",
            "step(1)",
            "Next",
            id="choice.next",
            tooltip="In a choice: the next word",
            show=False,
        ),
        Binding(
            "enter",
            "take",
            "Next",
            id="choice.take",
            tooltip="In a choice: take it, go on",
        ),
    ]

    value: reactive[str] = reactive("", layout=True)

    class Changed(Message):
        """Another word was chosen by the user."""

        def __init__(self, choice: Choice, value: str) -> None:
            """By which widget, and which."""
            super().__init__()
            self.choice, self.value = choice, value

        @property
        def control(self) -> Choice:
            """The widget."""
            return self.choice

    class Taken(Message):
        """Enter was pressed: go on."""

        def __init__(self, choice: Choice) -> None:
            """On which widget."""
            super().__init__()
            self.choice = choice

        @property
        def control(self) -> Choice:
            """The widget."""
            return self.choice

    def __init__(
        self, words: Sequence[str], value: str, *, id: str | None = None, told: str = ""
    ) -> None:
        """``words`` to choose from; ``value`` need not be one of them."""
        super().__init__(id=id)
        self.words = list(words)
        self.told = told
        self.set_reactive(Choice.value, value)

    def offer(self, words: Sequence[str], value: str) -> None:
        """Other words, without telling anybody."""
        if list(words) != self.words or value != self.value:
            self.words, self.value = list(words), value
            self.refresh(layout=True)

    def action_step(self, by: int) -> None:
        """The next word; after the last one comes the first."""
        here = self.words.index(self.value) if self.value in self.words else -by
        self.value = self.words[(here + by) % len(self.words)]
        self.post_message(self.Changed(self, self.value))

    def action_take(self) -> None:
        """Go on."""
        self.post_message(self.Taken(self))

    def on_click(self, event: events.Click) -> None:
        """A click on the left sign goes back, everywhere else on."""
        self.action_step(-1 if event.x < 2 else 1)

    def render(self) -> Content:
        """The signs in the accent colour where the keyboard is."""
        signs = glyphs.chosen()
        colour = "bold $accent" if self.has_focus else "$secondary"
        return Content.assemble(
            (f"{signs.previous} ", colour), self.value, (f" {signs.next}", colour)
        )
