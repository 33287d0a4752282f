"""A line of the wizard: a setting's name, its entry, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from poros_tui import glyphs
from poros_tui.screens.config_form import FieldForm
from poros_tui.terms import explained
from poros_tui.widgets.choice import Choice
from poros_tui.widgets.field import Field


class Entry(Field):
    """A field whose Enter goes on; the last line says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "Next", id="entry.take",
                tooltip="In a field of Config: take it, go on"),
    ]  # fmt: skip


class _Name(Entry):
    """A model or data; an empty one leaves number keys to the screens that they stand for."""

    async def _on_key(self, event: events.Key) -> None:
        if self.value or not event.key.isdecimal():
            await super()._on_key(event)
        else:
            event.prevent_default()

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """What of the keys is text."""
        return bool(self.value or not key.isdecimal()) and super().check_consume_key(key, character)


class Row(Horizontal):
    """One setting or question.

    Attributes:
        key: Of the setting, or the question's own.
        told: What `?` says of it.
    """

    class Entered(Message):
        """The user changed an entry."""

        def __init__(self, key: str, text: str) -> None:
            """Which, and to what."""
            super().__init__()
            self.key, self.text = key, text

    class Done(Message):
        """Enter was pressed in an entry."""

        def __init__(self, row: Row) -> None:
            """In which row."""
            super().__init__()
            self.row = row

    def __init__(
        self,
        key: str,
        label: str,
        text: str,
        *,
        words: Sequence[str] = (),
        placeholder: str = "",
        told: str = "",
        classes: str = "",
    ) -> None:
        """``words``: to choose from; else a text is typed."""
        super().__init__(classes=f"row {classes}".strip())
        self.key, self.label, self.told = key, label, told
        self._words = words
        self._shown: tuple[object, ...] = ()
        self._label = Static(label, classes="row-label", markup=False)
        self._note = Static("", classes="row-note", markup=False)
        self._entry: Input | Choice
        if words:
            self._entry = Choice(words, text)
        else:
            # A key that was meant for another screen must not replace what stands there.
            kind = _Name if key in ("model_name_or_path", "dataset") else Entry
            self._entry = kind(text, placeholder=placeholder, compact=True, select_on_focus=False)
            self._entry.cursor_blink = False

    def compose(self) -> ComposeResult:
        """Name, entry, note."""
        yield self._label
        yield self._entry
        yield self._note

    @property
    def text(self) -> str:
        """What is entered."""
        return self._entry.value

    def show(
        self,
        text: str,
        *,
        words: Sequence[str] = (),
        note: str = "",
        is_own: bool = False,
        is_wrong: bool = False,
    ) -> None:
        """Bring it up to date; what is just being typed stays.

        Args:
            text: The entry.
            words: To choose from, of a choice.
            note: Said beside it.
            is_own: It differs from the preset.
            is_wrong: Something is wrong with it.
        """
        shown = (text, tuple(words), note, is_own, is_wrong, self.text)
        if shown == self._shown:
            return
        self._shown = shown
        if isinstance(self._entry, Choice):
            self._entry.offer(words or self._words, text)
        elif not self._entry.has_focus and self._entry.value != text:
            with self._entry.prevent(Input.Changed):
                self._entry.value = text
        self.set_class(is_wrong, "-wrong")
        self.set_class(is_own, "-own")
        signs = glyphs.chosen()
        mark = signs.error if is_wrong else signs.best if is_own else " "
        self._label.update(Content(f"{mark} {self.label}"))
        self._note.update(Content(note))

    def put(self, text: str) -> None:
        """Set the entry though it has the keyboard, without telling anybody."""
        if isinstance(self._entry, Input):
            with self._entry.prevent(Input.Changed):
                self._entry.value = text
            self._entry.cursor_position = len(text)

    def take_keyboard(self) -> None:
        """Into the entry."""
        self._entry.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """While it is typed."""
        event.stop()
        if event.input.has_focus:  # it also comes for what was put there
            self.post_message(self.Entered(self.key, event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Done(self))

    def on_choice_changed(self, event: Choice.Changed) -> None:
        """Another word."""
        event.stop()
        self.post_message(self.Entered(self.key, event.value))

    def on_choice_taken(self, event: Choice.Taken) -> None:
        """Enter."""
        event.stop()
        self.post_message(self.Done(self))


def setting_row(each: FieldForm, text: str) -> Row:
    """The row of a setting."""
    words = each.choices if each.kind in ("choice", "toggle") else ()
    return Row(
        each.key,
        each.title,
        text,
        words=words,
        placeholder="not set" if each.can_be_empty else each.takes,
        told=_explanation(each),
    )


def _explanation(each: FieldForm) -> str:
    term = explained(each.key) or next(
        (
            explained(word)
            for word in (each.title, each.title.rpartition(" ")[2])
            if explained(word)
        ),
        "",
    )
    lines = [each.title, "", each.description, f"Takes: {each.takes}.", f"In the file: {each.key}"]
    return "\n".join(lines + ([term] if term else []))


class FormScroll(VerticalScroll, can_focus=False):
    """Rows among which up and down move the keyboard."""

    def action_scroll_up(self) -> None:
        """The entry above."""
        self.screen.focus_previous()

    def action_scroll_down(self) -> None:
        """The entry below."""
        self.screen.focus_next()
