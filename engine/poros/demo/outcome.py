"""What the demo's run changed, read from its events: answers, markers, held-out loss."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from poros import events
from poros.demo.voice import has_marker
from poros.events import EvaluationFinished, Event, RunFinished, SampleGenerated

_NUM_SHOWN = 5


@dataclass(frozen=True, slots=True)
class AnswerPair:
    """One held-out question, asked twice."""

    question: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The demo in numbers and words."""

    answers: tuple[AnswerPair, ...]
    loss_before: float | None
    loss_after: float | None
    adapter_path: str | None

    @property
    def num_markers_before(self) -> int:
        """Answers of the untrained model that sound like the keeper."""
        return sum(has_marker(pair.before) for pair in self.answers)

    @property
    def num_markers_after(self) -> int:
        """Answers of the trained model that do."""
        return sum(has_marker(pair.after) for pair in self.answers)

    @property
    def loss_fall_percent(self) -> float | None:
        """By how much the held-out loss fell."""
        if not self.loss_before or self.loss_after is None:
            return None
        return 100 * (1 - self.loss_after / self.loss_before)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        numbers = {
            "num_questions": len(self.answers),
            "num_markers_before": self.num_markers_before,
            "num_markers_after": self.num_markers_after,
            "loss_fall_percent": self.loss_fall_percent,
        }
        return numbers | dataclasses.asdict(self)


def outcome_of(events_path: Path) -> Outcome:
    """Read a finished run's event file."""
    happened = [
        event
        for line in events_path.read_text(encoding="utf-8").splitlines()
        if (event := events.from_line(line)) is not None
    ]
    losses = [event for event in happened if isinstance(event, EvaluationFinished)]
    ends = [event for event in happened if isinstance(event, RunFinished)]
    return Outcome(
        answers=_pairs(happened),
        loss_before=losses[0].eval_loss if losses and losses[0].step == 0 else None,
        loss_after=losses[-1].eval_loss if losses and losses[-1].step > 0 else None,
        adapter_path=ends[-1].adapter_path if ends else None,
    )


def show(outcome: Outcome, console: Console | None = None) -> None:
    """Print some answers side by side, then the counts over all of them."""
    console = console or Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="Questions that no training saw", expand=True)
    for title in ("question", "before", "after"):
        table.add_column(title, ratio=1 if title == "question" else 2)
    for pair in outcome.answers[:: max(1, len(outcome.answers) // _NUM_SHOWN)]:
        table.add_row(*(Text(" ".join(text.split())) for text in dataclasses.astuple(pair)))
    console.print(table)
    total = len(outcome.answers)
    console.print(
        f"The keeper's voice: {outcome.num_markers_before} of {total} answers before, "
        f"{outcome.num_markers_after} of {total} after."
    )
    if outcome.loss_fall_percent is not None:
        console.print(
            f"Held-out loss: {outcome.loss_before:.3f} before, {outcome.loss_after:.3f} after "
            f"({outcome.loss_fall_percent:.0f} % less)."
        )
    if outcome.adapter_path:
        console.print(f"The adapter: {outcome.adapter_path}", soft_wrap=True, markup=False)


def _pairs(happened: list[Event]) -> tuple[AnswerPair, ...]:
    texts: dict[str, dict[str, str]] = {}
    for event in happened:
        if isinstance(event, SampleGenerated):
            texts.setdefault(event.prompt, {})[event.stage] = event.text
    return tuple(
        AnswerPair(question, answers.get("before", ""), answers.get("after", ""))
        for question, answers in texts.items()
    )
