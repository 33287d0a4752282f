"""What a person should notice of a run: each with a sentence, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from poros_tui.engine.run_pace import median_step_s
from poros_tui.engine.run_state import PAUSED, TRAINING, RunState
from poros_tui.engine.smoothing import smoothed
from poros_tui.words import count, duration, gigabytes

WARNING, ERROR = "warning", "error"

STALLED_STEPS = 5
"""A step that takes so many times the median is told."""
SILENT_S = 20.0
"""The engine says something every five seconds."""
NEAR_CAP = 0.95
HOT_C = 87
DIVERGED = 1.5
"""The smoothed loss, as a multiple of its lowest value so far."""
_ZERO_STEPS = 5
_SETTLED_STEPS = 30
"""Steps before a loss is judged."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to know.

    Attributes:
        code: Which one; an alert that was put away stays away until its code goes.
        says: What is so.
        advice: What to do, or why nothing needs to be done.
    """

    code: str
    level: str
    says: str
    advice: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the event file does not tell; None: not known.

    Attributes:
        now_s: Wall clock.
        is_alive: Whether the run's process holds its folder.
        disk_free_bytes: Where the run is written.
        unwritten: Why the engine can't write what it does, such as ``disk full``; empty: it can.
        unread: Why its events can't be read, in a sentence; empty: they can.
        card_total_bytes: Of the card that it trains on.
        card_used_bytes: By everybody.
        card_celsius: Its temperature.
        card_slowed: It slows itself down, since it is hot or has too little power.
    """

    now_s: float
    is_alive: bool | None = None
    disk_free_bytes: int | None = None
    unwritten: str = ""
    unread: str = ""
    card_total_bytes: int | None = None
    card_used_bytes: int | None = None
    card_celsius: int | None = None
    card_slowed: bool | None = None


def alerts_of(run: RunState, around: Surroundings) -> list[Alert]:
    """All that is worth saying now, the worst first."""
    found = [alert for look in _LOOKS for alert in look(run, around)]
    return sorted(found, key=lambda alert: alert.level != ERROR)


def is_going(run: RunState, around: Surroundings) -> bool:
    """It makes steps, or should."""
    return run.status in (TRAINING, PAUSED) and around.is_alive is not False


def _not_finite(run: RunState, _: Surroundings) -> Iterator[Alert]:
    losses = run.steps.tail("loss", 200)
    if len(losses) and not np.isfinite(losses).all():
        bad = int(run.steps.tail("step", 200)[~np.isfinite(losses)][-1])
        yield Alert(
            "nan",
            ERROR,
            f"The loss of step {count(bad)} is no number.",
            "Stop, and start again with a lower learning rate.",
        )


def _zero(run: RunState, around: Surroundings) -> Iterator[Alert]:
    losses = run.steps.tail("loss", _ZERO_STEPS)
    if len(losses) == _ZERO_STEPS and not losses.any() and is_going(run, around):
        yield Alert(
            "zero",
            ERROR,
            f"The loss is zero in {_ZERO_STEPS} steps: nothing is learned.",
            "Stop, and look in 4 Data at what of a row is trained.",
        )


def _diverging(run: RunState, around: Surroundings) -> Iterator[Alert]:
    losses = run.steps.tail("loss", 2_000)
    if len(losses) < _SETTLED_STEPS or not is_going(run, around):
        return
    curve = smoothed(losses, 0.9)[_SETTLED_STEPS // 2 :]
    lowest = float(np.nanmin(curve)) if np.isfinite(curve).any() else math.nan
    if lowest > 0 and float(curve[-1]) > DIVERGED * lowest:
        yield Alert(
            "diverging",
            WARNING,
            f"The loss climbs: {curve[-1]:.2f} now, {lowest:.2f} at its best.",
            "A lower learning rate usually helps; earlier checkpoints are kept.",
        )


def _near_cap(run: RunState, around: Surroundings) -> Iterator[Alert]:
    total, used = around.card_total_bytes, around.card_used_bytes
    if total and used and used > NEAR_CAP * total and is_going(run, around):
        yield Alert(
            "near-cap",
            WARNING,
            f"The card is nearly full: {gigabytes(used)} of {gigabytes(total)}.",
            "If it runs out, Poros moves more to RAM and goes on; close other programs.",
        )
    if run.shrinks and not run.has_ended:
        latest = run.shrinks[-1]
        yield Alert(
            f"shrunk-{len(run.shrinks)}",
            WARNING,
            f"The card ran out of memory at step {count(latest.step)}: {latest.change}.",
            "It goes on with the same result, a little slower.",
        )


def _disk(run: RunState, around: Surroundings) -> Iterator[Alert]:
    if around.unwritten:
        yield Alert(
            "unwritten",
            ERROR,
            f"The run can't write what it does: {around.unwritten}.",
            "It goes on; make room.",
        )
        return
    if run.unsaved is not None:
        failed = run.unsaved
        yield Alert(
            f"unsaved-{failed.step}",
            ERROR,
            f"The checkpoint of step {count(failed.step)} was not written: {failed.reason}.",
            "Make room on the disk, then save with c; the checkpoints before it are intact.",
        )
        return
    free = around.disk_free_bytes
    size = run.checkpoints[-1].size_bytes if run.checkpoints else 0
    if free is not None and size and free < 3 * size and is_going(run, around):
        yield Alert(
            "disk",
            WARNING,
            f"The disk is nearly full: {gigabytes(free)} left, a checkpoint takes"
            f" {gigabytes(size)}.",
            "Make room before the next checkpoint.",
        )


def _unread(_: RunState, around: Surroundings) -> Iterator[Alert]:
    if around.unread:
        yield Alert(
            "unread",
            ERROR,
            around.unread,
            "It goes on; put it back or it is lost.",
        )


def _stalled(run: RunState, around: Surroundings) -> Iterator[Alert]:
    median_s = median_step_s(run)
    if run.status != TRAINING or run.phase is not None or around.is_alive is False:
        return
    passed_s = around.now_s - run.step_s
    silent_s = around.now_s - run.last_s
    if around.unwritten or around.unread:
        return  # it says why
    if silent_s > SILENT_S:
        yield Alert(
            "silent",
            ERROR,
            f"Not a word from the engine for {duration(silent_s)}.",
            "The machine may be out of memory or asleep; if it stays so, abort (x) and go on (r).",
        )
    elif median_s and passed_s > max(STALLED_STEPS * median_s, 5.0):
        yield Alert(
            "stalled",
            WARNING,
            f"This step takes {duration(passed_s)}; others took {duration(median_s)}.",
            f"Another program may be using the {_computes_on(run)} or the disk.",
        )


def _computes_on(run: RunState) -> str:
    return "processor" if run.started is not None and run.started.device == "cpu" else "card"


def _stuck(run: RunState, around: Surroundings) -> Iterator[Alert]:
    """A download from which nothing comes: the engine lives, but has nothing to tell."""
    phase = run.phase
    if phase is None or phase.name != "download" or around.is_alive is False:
        return
    passed_s = around.now_s - max(phase.began_s, phase.progressed_s)
    if passed_s > SILENT_S:
        yield Alert(
            "stuck",
            WARNING,
            f"No byte came for {duration(passed_s)}.",
            "Abort (x), start again: it goes on.",
        )


def _hot(run: RunState, around: Surroundings) -> Iterator[Alert]:
    if not is_going(run, around):
        return
    celsius = around.card_celsius
    is_hot = celsius is not None and celsius >= HOT_C
    if around.card_slowed and not is_hot:
        warm = f" at {celsius} °C" if celsius is not None else ""
        yield Alert(
            "hot",
            WARNING,
            f"The card slows itself down{warm}: it is too hot, or has too little power.",
            "Look at its fans and its power cables; the result is the same.",
        )
    elif is_hot:
        yield Alert(
            "hot",
            WARNING,
            f"The card is at {celsius} °C" + (" and slows down." if around.card_slowed else "."),
            "Better cooling makes it faster; the result is the same.",
        )


_LOOKS: tuple[Callable[[RunState, Surroundings], Iterator[Alert]], ...] = (
    _not_finite,
    _zero,
    _diverging,
    _near_cap,
    _disk,
    _unread,
    _stalled,
    _stuck,
    _hot,
)
