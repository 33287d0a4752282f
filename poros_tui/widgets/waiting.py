"""A command that takes a while: what it is at, how long, and a way to cancel it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from poros_tui import words
from poros_tui.engine.tasks import Task
from poros_tui.widgets.steady import Dialog

_TICK_S = 0.25


class WaitingDialog(Dialog[Any]):
    """Runs `poros` with some words; gives its JSON answer, or None if it was cancelled.

    What goes wrong stays on the dialog until it is closed.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape",
            "cancel",
            "Cancel",
            id="waiting.cancel",
            tooltip="While one waits: stop it, or close",
        ),
    ]

    def __init__(
        self, title: str, detail: str, arguments: Sequence[str], *, limit_s: float = 3600.0
    ) -> None:
        """``limit_s``: it is ended after so many seconds."""
        super().__init__()
        self._title, self._detail = title, detail
        self._arguments, self._limit_s = list(arguments), limit_s
        self._command: Task | None = None
        self._doing = ""

    def compose(self) -> ComposeResult:
        """Title, detail, what it is at, how to leave."""
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="dialog-title", markup=False)
            yield Static(self._detail, classes="dialog-detail", markup=False)
            yield Static("Starting", id="doing", markup=False)
            yield Static("esc cancels", classes="quiet", id="way-out", markup=False)

    def on_mount(self) -> None:
        """Begin."""
        self._command = Task(self._arguments, limit_s=self._limit_s)
        self.set_interval(_TICK_S, self._look)

    def action_cancel(self) -> None:
        """End the command and close."""
        if self._command is not None:
            self._command.cancel()
        self.dismiss(None)

    def _look(self) -> None:
        task = self._command
        if task is None or not self.is_current:
            return
        for record in task.drain():
            self._doing = _told(record) or self._doing
        doing = self.query_one("#doing", Static)
        if task.result is None:
            doing.update(f"{self._doing or 'Starting'}   {words.duration(task.elapsed_s)}")
        elif task.result.error:
            doing.update(task.result.error)
            doing.set_classes("bad")
            self.query_one("#way-out", Static).update("esc closes")
        else:
            self.dismiss(task.result.document)


def _told(record: Any) -> str:
    """An event as a few words."""
    if not isinstance(record, dict):
        return ""
    if record.get("event") == "phase_started":
        return {"download": "Downloading", "convert": "Making a model folder of it"}.get(
            str(record.get("phase")), str(record.get("phase"))
        )
    if record.get("event") == "phase_progressed" and record.get("total"):
        done, total = float(record["done"]), float(record["total"])
        if record.get("unit") == "bytes":
            return f"Downloading {words.of_gigabytes(done, total)}"
        return f"{done:,.0f} of {total:,.0f} {record.get('unit')}"
    return ""
