"""What screens and dialogs are built on: sizes and keys that come late are passed over."""

from __future__ import annotations

from typing import TypeVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.screen import ModalScreen, Screen

Result = TypeVar("Result")


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

    _is_answered = False

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result. A second Enter may be on its way already: it closes nothing more."""
        if self._is_answered:
            return AwaitComplete()
        self._is_answered = True
        return super().dismiss(result)


class Palette(CommandPalette):
    """Textual's, which a second Enter must not close again either."""

    _is_answered = False

    def dismiss(self, result: None = None) -> AwaitComplete:
        """As `Dialog` does."""
        if self._is_answered:
            return AwaitComplete()
        self._is_answered = True
        return super().dismiss(result)
