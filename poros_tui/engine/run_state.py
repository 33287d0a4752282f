"""What is known of a run, folded from the lines of its event file: pure, no clock and no files.

The same fold draws a running, a finished and a killed run. Lines may be torn, garbled or of a
later version; a run that went on from a checkpoint forgets what came after it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from poros import events
from poros.events import Event
from poros_tui.engine.run_log import LogLine, told
from poros_tui.engine.step_table import StepTable

WAITING, STARTING, TRAINING, PAUSED = "waiting", "starting", "training", "paused"
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
ENDED = (FINISHED, STOPPED, FAILED)

_FIRST_PHASES = ("start", "inputs", "download", "tokenise", "hash", "device")
"""What a process does before it says that it began; none of it comes later."""

MAX_LOG_LINES = 2_000
MAX_LOOKS = 4_096
"""Most evaluations, answers and checkpoints kept; the oldest go."""


@dataclass(slots=True)
class Phase:
    """Work of one kind; ``total`` 0: unknown, ``duration_s`` None: it is going on."""

    name: str
    began_s: float
    done: int = 0
    total: int = 0
    unit: str = ""
    progressed_s: float = 0.0
    duration_s: float | None = None


@dataclass(slots=True)
class Answer:
    """One prompt: what the model said before, and last."""

    prompt: str
    before: str = ""
    now: str = ""
    step: int = 0


@dataclass(slots=True)
class Shrink:
    """Memory ran out at a step, and what was moved."""

    step: int
    change: str


@dataclass(slots=True)
class RunState:
    """A run as its events tell it.

    Attributes:
        status: As the events say; whether its process lives is known elsewhere.
        first_step: The step that this process went on from.
        start_phases: The phases before the first step, in order.
        phase: The one that is going on, innermost; None between steps.
        overhead_s: Time between this process's steps that was not spent in them or in a pause.
        last_s: Wall clock of the newest line, seconds since the epoch.
        version: Grows with each line, so that a screen knows whether to draw.
    """

    status: str = WAITING
    started: events.RunStarted | None = None
    first_step: int = 0
    steps: StepTable = field(default_factory=StepTable)
    evals: deque[events.EvaluationFinished] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))
    answers: dict[str, Answer] = field(default_factory=dict)
    start_phases: list[Phase] = field(default_factory=list)
    phase: Phase | None = None
    data: dict[str, events.DataPrepared] = field(default_factory=dict)
    plan: events.PlanMade | None = None
    measured: events.PlanMeasured | None = None
    loaded: events.ModelLoaded | None = None
    shrinks: list[Shrink] = field(default_factory=list)
    checkpoints: deque[events.CheckpointSaved] = field(default_factory=lambda: deque(maxlen=64))
    unsaved: events.CheckpointFailed | None = None
    heartbeat: events.Heartbeat | None = None
    heartbeat_s: float = 0.0
    peak_bytes: int = 0
    host_rss_bytes: int = 0
    finished: events.RunFinished | None = None
    failed: events.RunFailed | None = None
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=MAX_LOG_LINES))
    num_log_lines: int = 0
    overhead_s: float = 0.0
    step_s: float = 0.0
    """Wall clock of the newest step."""
    last_s: float = 0.0
    num_bad_lines: int = 0
    version: int = 0
    _began_here: int = 0
    _paused_since_step: bool = False

    @property
    def step(self) -> int:
        """The newest step."""
        return int(self.steps.last("step", self.first_step))

    @property
    def total_steps(self) -> int:
        """How many it is to make; 0: not known yet."""
        return self.started.total_steps if self.started else 0

    @property
    def saved_step(self) -> int | None:
        """Of the newest checkpoint; None: there is none, and a new start begins anew."""
        if self.checkpoints:
            return self.checkpoints[-1].step
        # The file is cut there on resume, so the checkpoint's own line may be gone.
        return self.first_step or None

    @property
    def num_steps_here(self) -> int:
        """The steps that this process made."""
        return self.steps.num_steps - self._began_here

    @property
    def has_ended(self) -> bool:
        """Its own word for it; one that was killed has none."""
        return self.status in ENDED

    @property
    def is_on_cpu(self) -> bool:
        """It has no card."""
        return self.started is not None and self.started.device == "cpu"

    def take_lines(self, lines: Iterable[str]) -> None:
        """Fold whole lines of an event file."""
        for line in lines:
            self.take_line(line)

    def take_line(self, line: str) -> None:
        """Fold one line; one that is none is counted."""
        try:
            time_s = float(json.loads(line)["time_s"])
            event = events.from_line(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            self.num_bad_lines += 1
            self.version += 1
            return
        if event is not None:
            self.take(event, time_s)

    def take(self, event: Event, time_s: float) -> None:
        """Fold one record of this time."""
        self.version += 1
        self.last_s = max(self.last_s, time_s)
        fold = _FOLDS.get(type(event))
        if fold is not None:
            fold(self, event, time_s)
        for level, text in told(event):
            self.log.append(LogLine(time_s, level, text))
            self.num_log_lines += 1

    def _began(self, event: events.RunStarted, _: float) -> None:
        if self.started is not None:
            self._begin_again(event)
        self.started = event
        self.first_step = event.resumed_from_step or 0
        self.steps.cut(self.first_step)
        self._began_here = self.steps.num_steps
        self.status = STARTING

    def _begin_again(self, event: events.RunStarted) -> None:
        """Another process goes on with the run: what it will tell again goes."""
        first_step = event.resumed_from_step or 0
        self.finished, self.failed, self.phase, self.unsaved = None, None, None, None
        self.heartbeat, self.plan, self.measured, self.loaded = None, None, None, None
        self.overhead_s, self.step_s, self._paused_since_step = 0.0, 0.0, False
        self.shrinks.clear()
        kept = [found for found in self.evals if found.step <= first_step]
        self.evals = deque(kept, maxlen=MAX_LOOKS)
        # One that went on from an older checkpoint has set the newer ones aside.
        while self.checkpoints and self.checkpoints[-1].step > first_step:
            self.checkpoints.pop()

    def _wake(self, phase: str) -> None:
        """A process looks through its inputs before it says that it began.

        The word of the one before it that it ended may be gone, since the file is cut on resume.
        """
        if self.status == WAITING or (self.status != STARTING and phase in _FIRST_PHASES):
            self.status, self.start_phases, self.phase = STARTING, [], None
            self.finished, self.failed = None, None

    def _phase_began(self, event: events.PhaseStarted, time_s: float) -> None:
        self._wake(event.phase)
        if event.phase == "train":
            self.phase, self.status = None, TRAINING
            return
        if event.phase == "pause":
            self.status, self._paused_since_step = PAUSED, True
            return
        self.phase = Phase(event.phase, time_s)
        if self.status == STARTING:
            self._add_start_phase(self.phase)

    def _add_start_phase(self, phase: Phase) -> None:
        """One of the same name is the same work's next part."""
        self.start_phases = [p for p in self.start_phases if p.name != phase.name]
        self.start_phases.append(phase)

    def _phase_progressed(self, event: events.PhaseProgressed, time_s: float) -> None:
        phase = self.phase
        if phase is None or phase.name != event.phase:
            phase = self.phase = Phase(event.phase, time_s)
        phase.done, phase.total, phase.unit = event.done, event.total, event.unit
        phase.progressed_s = time_s

    def _phase_ended(self, event: events.PhaseFinished, time_s: float) -> None:
        self._wake(event.phase)
        if event.phase == "pause" and self.status == PAUSED:
            self.status = TRAINING
        names = {phase.name: phase for phase in self.start_phases}
        found = names.get(event.phase)
        if found is None and self.status == STARTING:
            self._add_start_phase(found := Phase(event.phase, time_s - event.duration_s))
        if found is not None and found.duration_s is None:
            found.duration_s = event.duration_s
        if self.phase is not None and self.phase.name == event.phase:
            self.phase.duration_s, self.phase = event.duration_s, None
        if self.phase is None and self.status == STARTING:
            # `tokenise` stands inside `inputs`: what is around it goes on.
            open_phases = [phase for phase in self.start_phases if phase.duration_s is None]
            self.phase = open_phases[-1] if open_phases else None

    def _prepared(self, event: events.DataPrepared, _: float) -> None:
        self.data[event.split] = event

    def _planned(self, event: events.PlanMade, _: float) -> None:
        self.plan = event

    def _was_measured(self, event: events.PlanMeasured, _: float) -> None:
        self.measured = event

    def _was_loaded(self, event: events.ModelLoaded, _: float) -> None:
        self.loaded = event

    def _stepped(self, event: events.StepFinished, time_s: float) -> None:
        if self.step_s and not self._paused_since_step:
            self.overhead_s += max(0.0, time_s - self.step_s - event.duration_s)
        self.status = PAUSED if self.status == PAUSED else TRAINING
        self.phase, self._paused_since_step = None, self.status == PAUSED
        self.steps.add(event)
        self.step_s = time_s
        self.peak_bytes = max(self.peak_bytes, event.device_peak_bytes)
        self.host_rss_bytes = event.host_rss_bytes

    def _shrank(self, event: events.PlanShrunk, _: float) -> None:
        self.shrinks.append(Shrink(event.step, event.change))
        if self.plan is not None:
            self.plan = _with_changes(self.plan, event.plan)

    def _evaluated(self, event: events.EvaluationFinished, _: float) -> None:
        while self.evals and self.evals[-1].step >= event.step:
            self.evals.pop()
        self.evals.append(event)

    def _answered(self, event: events.SampleGenerated, _: float) -> None:
        answer = self.answers.setdefault(event.prompt, Answer(event.prompt))
        if event.stage == "before":
            answer.before, answer.now = event.text, ""
        else:
            answer.now = event.text
        answer.step = event.step
        if len(self.answers) > MAX_LOOKS:
            del self.answers[next(iter(self.answers))]

    def _saved(self, event: events.CheckpointSaved, _: float) -> None:
        self.unsaved = None
        if not self.checkpoints or self.checkpoints[-1].path != event.path:
            self.checkpoints.append(event)

    def _not_saved(self, event: events.CheckpointFailed, _: float) -> None:
        self.unsaved = event

    def _beat(self, event: events.Heartbeat, time_s: float) -> None:
        self.heartbeat, self.heartbeat_s = event, time_s
        self.host_rss_bytes = event.host_rss_bytes
        if event.phase == "pause" and self.status == TRAINING:
            self.status, self._paused_since_step = PAUSED, True
        elif event.phase != "pause" and self.status == PAUSED:
            self.status = TRAINING

    def _acknowledged(self, event: events.CommandAcknowledged, _: float) -> None:
        if event.command == "pause" and self.status == TRAINING:
            self.status, self._paused_since_step = PAUSED, True
        elif event.command == "resume" and self.status == PAUSED:
            self.status = TRAINING

    def _ended(self, event: events.RunFinished, _: float) -> None:
        self.finished, self.phase = event, None
        self.status = FINISHED if event.status == "finished" else STOPPED
        self.peak_bytes = max(self.peak_bytes, event.peak_vram_allocated_bytes)

    def _broke(self, event: events.RunFailed, _: float) -> None:
        self.failed, self.phase, self.status = event, None, FAILED


def _with_changes(plan: events.PlanMade, changed: dict[str, Any]) -> events.PlanMade:
    """The plan with what a smaller one says of the same fields."""
    names = {told.name for told in fields(plan)}
    return replace(plan, **{name: value for name, value in changed.items() if name in names})


_FOLDS: dict[type[Event], Callable[[RunState, Any, float], None]] = {
    events.RunStarted: RunState._began,
    events.PhaseStarted: RunState._phase_began,
    events.PhaseProgressed: RunState._phase_progressed,
    events.PhaseFinished: RunState._phase_ended,
    events.DataPrepared: RunState._prepared,
    events.PlanMade: RunState._planned,
    events.PlanMeasured: RunState._was_measured,
    events.ModelLoaded: RunState._was_loaded,
    events.StepFinished: RunState._stepped,
    events.PlanShrunk: RunState._shrank,
    events.EvaluationFinished: RunState._evaluated,
    events.SampleGenerated: RunState._answered,
    events.CheckpointSaved: RunState._saved,
    events.CheckpointFailed: RunState._not_saved,
    events.Heartbeat: RunState._beat,
    events.CommandAcknowledged: RunState._acknowledged,
    events.RunFinished: RunState._ended,
    events.RunFailed: RunState._broke,
}
