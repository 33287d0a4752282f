"""What the log pane says about each event: a level and plain sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from poros import events
from poros.errors import escape_control
from poros.events import Event
from poros_tui.words import count, duration, gigabytes

INFO, WARNING, ERROR = "info", "warning", "error"
_WORTH_TELLING_S = 1.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the log pane; ``time_s`` is wall clock."""

    time_s: float
    level: str
    text: str


PHASES = {
    "start": "Start the engine",
    "inputs": "Look through model and data",
    "download": "Download",
    "tokenise": "Read the data",
    "hash": "Check the model's files",
    "device": "Get ready to compute",
    "load": "Load the model",
    "quantise": "Pack the model to 4 bits",
    "plan": "Plan which blocks stay",
    "attach": "Put the adapter in",
    "read": "Read the model's bytes",
    "evaluate": "Measure the held-out loss",
    "sample": "Let the model answer",
    "save": "Save a checkpoint",
    "train": "Train",
    "pause": "Paused",
}
"""A phase as a person reads it; one that is not here is shown by its name."""


_SPLITS = {"train": "training data", "eval": "held-out data"}
_ORDERS = {
    "stop": "stop",
    "stop_now": "abort",
    "checkpoint": "save",
    "pause": "pause",
    "resume": "go on",
}


def phase_name(phase: str) -> str:
    """The phase in words."""
    return PHASES.get(phase, phase.capitalize())


def told(event: Event) -> list[tuple[str, str]]:
    """Level and sentence of each line; most events have none: the screen shows them itself."""
    tell = _LINES.get(type(event))
    return [(level, escape_control(text)) for level, text in tell(event)] if tell else []


Lines = list[tuple[str, str]]


def _began(event: events.RunStarted) -> Lines:
    where = f"{event.model} on {event.device}, {count(event.total_steps)} steps"
    if event.resumed_from_step is None:
        return [(INFO, f"began: {where}")]
    return [(INFO, f"goes on from step {count(event.resumed_from_step)}: {where}")]


def _phase_ended(event: events.PhaseFinished) -> Lines:
    if event.phase in ("save", "evaluate", "pause") or event.duration_s < _WORTH_TELLING_S:
        return []
    return [(INFO, f"{phase_name(event.phase).lower()}: done in {duration(event.duration_s)}")]


def _prepared(event: events.DataPrepared) -> Lines:
    what = _SPLITS.get(event.split, event.split)
    text = f"{what}: {count(event.num_samples)} samples of {count(event.num_rows)} rows"
    if event.num_truncated or event.num_dropped:
        text += f", {count(event.num_truncated)} cut, {count(event.num_dropped)} left out"
    return [(WARNING if event.num_dropped else INFO, text)]


def _planned(event: events.PlanMade) -> Lines:
    stay = f"{len(event.resident)} of {event.num_blocks} blocks stay"
    if event.num_slots:
        stay += f", the others come in turn, {event.num_slots} at a time"
    known = event.bottleneck and not event.bottleneck.startswith("unknown")
    return [
        (INFO, f"plan: {stay}" + (f"; the slowest part is {event.bottleneck}" if known else ""))
    ]


def _measured(event: events.PlanMeasured) -> Lines:
    peak = f"peak {gigabytes(event.peak_bytes)}, " if event.peak_bytes else ""
    return [(INFO, f"measured: {peak}{event.step_s:.2f} s a step")]


def _shrank(event: events.PlanShrunk) -> Lines:
    what = f"the card ran out of memory at step {count(event.step)}: {event.change}"
    return [(WARNING, f"{what}; the step is made again, with the same result")]


def _evaluated(event: events.EvaluationFinished) -> Lines:
    return [(INFO, f"loss on held-out data after step {count(event.step)}: {event.eval_loss:.4f}")]


def _saved(event: events.CheckpointSaved) -> Lines:
    return [
        (INFO, f"saved a checkpoint of step {count(event.step)} ({gigabytes(event.size_bytes)})")
    ]


def _not_saved(event: events.CheckpointFailed) -> Lines:
    return [
        (
            ERROR,
            f"the checkpoint of step {count(event.step)} was not saved: {event.reason}; it goes on",
        )
    ]


def _acknowledged(event: events.CommandAcknowledged) -> Lines:
    what = _ORDERS.get(event.command, f"stop ({event.command})")  # else a signal's name
    return [(INFO, f"{what}: {event.detail}" if event.detail else what)]


def _warned(event: events.Warned) -> Lines:
    return [(WARNING, event.message)]


def _ended(event: events.RunFinished) -> Lines:
    return [
        (INFO, f"{event.status} after step {count(event.step)} in {duration(event.duration_s)}")
    ]


def _broke(event: events.RunFailed) -> Lines:
    text = f"{event.message}, {event.where}" if event.where else event.message
    lines = [(ERROR, text)]
    if event.remediation:
        lines.append((ERROR, f"to mend it: {event.remediation}"))
    return lines


_LINES: dict[type[Event], Callable[[Any], Lines]] = {
    events.RunStarted: _began,
    events.PhaseFinished: _phase_ended,
    events.DataPrepared: _prepared,
    events.PlanMade: _planned,
    events.PlanMeasured: _measured,
    events.PlanShrunk: _shrank,
    events.EvaluationFinished: _evaluated,
    events.CheckpointSaved: _saved,
    events.CheckpointFailed: _not_saved,
    events.CommandAcknowledged: _acknowledged,
    events.Warned: _warned,
    events.RunFinished: _ended,
    events.RunFailed: _broke,
}
