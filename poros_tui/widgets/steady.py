"""What screens and dialogs are built on: sizes and keys that come late are passed over."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.command import CommandList, CommandPalette
from textual.notifications import Notification
from textual.screen import ModalScreen, Screen
from textual.timer import Timer, TimerCallback
from textual.widgets import OptionList
from textual.worker import Worker

Result = TypeVar("Result")
_SHORTEST_S = 0.01
# What lies above a screen hides the app's keys, and a command that it waits for may take an hour.
_WAYS_OUT: list[BindingType] = [
    Binding("ctrl+q", "app.quit", id="app.quit", show=False),
    Binding("ctrl+c", "app.interrupt", id="app.interrupt", show=False),
]


class SteadyScreen(Screen[Result]):
    """A screen that a storm of resizes can't hang.

    Textual answers each size by laying out and, where that changed something, by telling the screen
    its size again. Of two sizes that wait at once each brings the other back, for ever.
    """

    async def _on_resize(self, event: events.Resize) -> None:
        """Pass over all but the present size; Textual calls its own handler after this one."""
        if event.size != self.app.size:
            event.prevent_default()


class Dialog(ModalScreen[Result], SteadyScreen[Result]):
    """A question or a pane above a screen."""

    BINDINGS: ClassVar[list[BindingType]] = _WAYS_OUT

    _is_answered = False

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result. A second Enter may be on its way already: it closes nothing more."""
        if self._is_answered:
            return AwaitComplete()
        self._is_answered = True
        return super().dismiss(result)


class Notice(Notification):
    """Textual's, for which time may run out while it is put up.

    A timer is made of what time is left. One below zero would never come to rest (textual 8.2).
    """

    @property
    def time_left(self) -> float:
        """Seconds."""
        return max(super().time_left, _SHORTEST_S)

    @property
    def has_expired(self) -> bool:
        """It need not be put up."""
        return super().time_left <= 0


class Choices(OptionList):
    """Textual's list, whose page keys fail in a window that is too small to show any of it.

    What Enter does stands in the last line.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Choose", id="choices.choose",
                tooltip="In a list of ways or runs: choose"),
    ]  # fmt: skip

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        """A page up or down."""
        if self.scrollable_content_region:
            super()._move_page(direction)


class Palette(CommandPalette):
    """Textual's, which a second Enter must not close again either."""

    BINDINGS: ClassVar[list[BindingType]] = _WAYS_OUT

    _is_answered = False

    def _action_command_list(self, action: str) -> None:
        """A key for its list; see `Choices`."""
        if self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)

    def set_timer(self, delay: float, callback: TimerCallback | None = None, **named: Any) -> Timer:
        """Textual's timers look for parts of it, which are gone once it is closed."""

        def while_open() -> Any:
            return callback() if callback is not None and not self._is_answered else None

        return super().set_timer(delay, while_open, **named)

    def run_worker(self, work: Any, *words: Any, **named: Any) -> Worker[Any]:
        """Its search may be at work still when the list is gone: no reason to end the app."""
        return super().run_worker(work, *words, **(named | {"exit_on_error": False}))

    def dismiss(self, result: None = None) -> AwaitComplete:
        """As `Dialog` does."""
        if self._is_answered:
            return AwaitComplete()
        self._is_answered = True
        return super().dismiss(result)
