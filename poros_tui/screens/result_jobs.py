"""Export and report: `poros` commands in children, what they answered told in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from poros_tui import words


class Running(Protocol):
    """What is needed of `engine.tasks.Task`."""

    @property
    def done(self) -> bool:
        """It ended."""

    @property
    def result(self) -> Any:
        """How."""

    @property
    def elapsed_s(self) -> float:
        """Since its start."""

    def cancel(self) -> None:
        """End it."""


@dataclass(frozen=True)
class Told:
    """What to say of a job: ``ok``, ``busy`` or ``error``, and the sentence."""

    kind: str
    text: str
    path: str = ""


class Job:
    """One command at a time."""

    def __init__(
        self,
        doing: str,
        describe: Callable[[dict[str, Any]], Told],
        start: Callable[[Sequence[str]], Running],
    ) -> None:
        """``doing`` names it while it runs; ``describe`` puts its answer into words.

        ``start`` runs a command of `poros`.
        """
        self._doing, self._describe, self._start = doing, describe, start
        self._task: Running | None = None
        self.told: Told | None = None

    @property
    def is_running(self) -> bool:
        """It is at work."""
        return self._task is not None

    def start(self, arguments: Sequence[str]) -> None:
        """Begin, unless it runs already."""
        if self._task is None:
            self._task = self._start(arguments)
            self.told = Told("busy", self._doing)

    def cancel(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

    def tick(self) -> bool:
        """Look at it; whether there is something new to say."""
        if self._task is None:
            return False
        if not self._task.done:
            text = f"{self._doing}  {words.duration(self._task.elapsed_s)}"
            changed = self.told is None or self.told.text != text
            self.told = Told("busy", text)
            return changed
        result, self._task = self._task.result, None
        document = result.document if isinstance(result.document, dict) else {}
        if result.error or not document:
            self.told = Told("error", result.error or "it gave no answer")
        else:
            self.told = self._describe(document)
        return True


def export_arguments(run: Path, output: Path) -> list[str]:
    """Of `poros export`."""
    return ["export", str(run), "-o", str(output), "--json"]


def report_arguments(run: Path) -> list[str]:
    """Of `poros report`."""
    return ["report", str(run), "--json"]


def exported(document: dict[str, Any]) -> Told:
    """What became of an export, with its check."""
    output = str(document.get("output", ""))
    size = words.gigabytes(float(document.get("num_bytes") or 0))
    told = f"{size} in {words.short_path(output)}"
    checks = document.get("logits") or []
    if not checks:
        return Told("ok", f"{told}, not compared", output)
    same = sum(bool(each.get("same_next_token")) for each in checks)
    compared = f"the same next word in {same} of {len(checks)} prompts as with the adapter"
    return Told("ok" if same == len(checks) else "warn", f"{told}; {compared}", output)


def reported(document: dict[str, Any]) -> Told:
    """Where the report lies."""
    path = str(document.get("path", ""))
    return Told("ok", f"{words.short_path(path)}: open it in a browser, or send it", path)
