"""How fast a run goes and when it is done, from its newest steps since it began or resumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from poros_tui.engine.run_state import Phase, RunState

WINDOW = 50
"""Steps that a rate is taken over."""
_RECENT = 10


@dataclass(frozen=True, slots=True)
class Pace:
    """Rates of a run; None: not known yet.

    Attributes:
        step_s: Mean of the newest steps.
        left_s: Until the last step, with what evaluations and checkpoints took so far.
        tokens_per_s: Of the newest steps.
        link_bytes_per_s: Bytes of blocks that came over the link, by the step's time.
        waiting_share: Of a step's time, what the computation waited for copies, 0 to 1.
    """

    step_s: float | None = None
    left_s: float | None = None
    tokens_per_s: float | None = None
    link_bytes_per_s: float | None = None
    waiting_share: float | None = None


def pace_of(run: RunState) -> Pace:
    """The rates of a run as it stands."""
    num_here = min(run.num_steps_here, len(run.steps))
    if num_here <= 0:
        return Pace()
    durations = run.steps.tail("duration_s", min(WINDOW, num_here))
    step_s = float(durations.mean())
    recent = min(_RECENT, num_here)
    recent_s = float(run.steps.tail("duration_s", recent).sum())
    if recent_s <= 0:
        return Pace(step_s=step_s, left_s=_left_s(run, step_s, num_here))
    return Pace(
        step_s=step_s,
        left_s=_left_s(run, step_s, num_here),
        tokens_per_s=float(run.steps.tail("num_tokens", recent).sum()) / recent_s,
        link_bytes_per_s=float(run.steps.tail("copied_bytes", recent).sum()) / recent_s,
        waiting_share=min(1.0, float(run.steps.tail("copy_wait_s", recent).sum()) / recent_s),
    )


def median_step_s(run: RunState) -> float | None:
    """The middle one of the newest steps; None before the first."""
    num_here = min(run.num_steps_here, len(run.steps), WINDOW)
    return float(np.median(run.steps.tail("duration_s", num_here))) if num_here > 0 else None


def phase_left_s(phase: Phase, now_s: float) -> float | None:
    """How long a phase will go on at its rate so far; None: it doesn't tell how far it is."""
    passed_s = max(phase.progressed_s, now_s) - phase.began_s
    if phase.total <= 0 or phase.done <= 0 or passed_s <= 0 or phase.duration_s is not None:
        return None
    at_rate_s = (phase.progressed_s - phase.began_s) / phase.done * phase.total
    return max(0.0, at_rate_s - passed_s)


def _left_s(run: RunState, step_s: float, num_here: int) -> float | None:
    if not run.total_steps:
        return None
    overhead_s = run.overhead_s / num_here
    return max(0, run.total_steps - run.step) * (step_s + overhead_s)
