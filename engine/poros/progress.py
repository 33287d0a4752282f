"""A run without screens: a progress line on a terminal, plain lines in a pipe, or JSON lines."""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TextIO

from poros import events
from poros.errors import escape_control
from poros.events import Event
from poros.memory_lines import map_lines, plan_lines
from poros.run_end import Samples, duration, summary
from poros.told_sizes import told_size

if TYPE_CHECKING:
    from poros.config import PorosConfig

PLAIN_EVERY_S = 10.0
"""In a pipe a line comes at least this often while steps are made."""
REDRAW_EVERY_S = 0.1

_RECENT_STEPS = 100
"""Of which the time left is told."""

LOOKS = ("evaluate", "sample")
"""Phases between two steps; the others are of a step."""

_CLEAR_LINE = "\r\x1b[K"


class Printer(Protocol):
    """Shows the events of one run."""

    def __call__(self, event: Event, line: str) -> None:
        """Show an event; ``line`` is what stands in the event file."""
        ...


class Output:
    """A stream that may go away: a closed pipe or a full disk never stops a run."""

    def __init__(self, stream: TextIO) -> None:
        """Write to ``stream`` as long as it takes it."""
        self._stream = stream

    def write(self, text: str) -> None:
        """Write and flush; once that fails, everything goes nowhere."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._abandon()

    def _abandon(self) -> None:
        # The interpreter flushes its streams at exit, and would fail there again.
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        except (OSError, ValueError):
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  kept


class JsonPrinter:
    """The lines of `events.jsonl` on stdout."""

    def __init__(self, stdout: TextIO) -> None:
        """Print to ``stdout``."""
        self._stdout = Output(stdout)

    def __call__(self, event: Event, line: str) -> None:
        """Print the line as it is."""
        self._stdout.write(line)


class LinePrinter:
    """Lines for people; on a terminal the last one is redrawn in place."""

    def __init__(
        self,
        config: PorosConfig,
        stdout: TextIO,
        stderr: TextIO,
        *,
        redraws: bool | None = None,
        samples: bool = True,
    ) -> None:
        """Find out what kind of place stdout is, unless ``redraws`` says it.

        With ``samples`` some of the model's answers are shown.
        """
        self._config = config
        self._samples = Samples() if samples else None
        self._stdout, self._stderr = Output(stdout), Output(stderr)
        is_terminal = stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._redraws = is_terminal if redraws is None else redraws
        self._drawn = ""
        self._last_s = 0.0
        self._total_steps = 0
        self._recent: deque[tuple[int, float]] = deque(maxlen=_RECENT_STEPS)
        self._first_step = 0
        self._on_cpu = False
        self._loaded: events.ModelLoaded | None = None

    def __call__(self, event: Event, line: str) -> None:
        """Show what a person wants to know of the event."""
        match event:
            case events.RunStarted():
                self._start(event)
            case events.StepFinished():
                self._show_step(event)
            case events.PhaseStarted():
                self._begin_phase(event.phase)
            case events.PhaseProgressed():
                self._show_progress(event)
            case events.PhaseFinished() if event.duration_s >= 1:
                self._say(f"{event.phase}: {event.duration_s:.0f} s")
                if event.phase == "pause":  # which is no part of what a step takes
                    self._recent.clear()
            case events.Warned():
                self._clear()
                self._stderr.write(f"poros: warning[{event.code}]: {_plain(event.message)}\n")
            case _:
                self._tell(event)

    def fail(self, lines: list[str]) -> None:
        """Print an error's lines to stderr."""
        self._clear()
        for line in lines:
            self._stderr.write(f"{line}\n")

    def _start(self, event: events.RunStarted) -> None:
        self._total_steps = event.total_steps
        self._first_step = event.resumed_from_step or 0
        self._recent.clear()
        self._on_cpu = event.device == "cpu"
        resumed = f", from step {self._first_step}" if event.resumed_from_step else ""
        self._say(
            f"{_plain(event.model)} on {event.device}: {event.total_steps} steps{resumed},"
            f" run folder {_plain(event.output_dir)}"
        )

    def _begin_phase(self, phase: str) -> None:
        self._redraw(f"{phase} ...", due=self._redraws)

    def _show_step(self, event: events.StepFinished) -> None:
        num_done = event.step - self._first_step
        self._recent.append((event.step, time.monotonic()))
        left_s = (self._total_steps - event.step) * self._recent_step_s(event)
        text = (
            f"step {event.step}/{self._total_steps}  loss {event.loss:.4f}"
            f"  rate {event.learning_rate:.2e}  {event.duration_s:.2f} s/step"
            f"  left {duration(left_s)}"
        )
        if event.device_peak_bytes:
            text += f"  peak {told_size(event.device_peak_bytes)}"
        is_last = event.step == self._total_steps
        often = event.step % self._config.logging_steps == 0 or is_last or num_done == 1
        self._redraw(text, due=self._redraws or often or self._is_late(PLAIN_EVERY_S))

    def _recent_step_s(self, event: events.StepFinished) -> float:
        """What a step took of late, with what was done between the steps."""
        (first_step, first_s), (step, now_s) = self._recent[0], self._recent[-1]
        return (now_s - first_s) / (step - first_step) if step > first_step else event.duration_s

    def _show_progress(self, event: events.PhaseProgressed) -> None:
        of_total = f"/{event.total}" if event.total else ""
        is_last = event.done == event.total
        due = self._is_late(REDRAW_EVERY_S if self._redraws else PLAIN_EVERY_S)
        if due or (self._redraws and is_last):
            self._redraw(f"{event.phase}: {event.done}{of_total} {event.unit}", due=True)

    def _is_late(self, seconds: float) -> bool:
        return time.monotonic() - self._last_s >= seconds

    def _redraw(self, text: str, *, due: bool) -> None:
        """Show a line that the next one replaces; in a pipe, a line."""
        if not due:
            return
        self._last_s = time.monotonic()
        if not self._redraws:
            self._stdout.write(f"{text}\n")
            return
        width = shutil.get_terminal_size().columns
        self._drawn = text[: max(width - 1, 1)]
        self._stdout.write(_CLEAR_LINE + self._drawn)

    def _tell(self, event: Event) -> None:
        if isinstance(event, events.RunFinished):
            self._keep()
        if isinstance(event, events.ModelLoaded):
            self._loaded = event
        told = _sentences(event, self._config, self._loaded, on_cpu=self._on_cpu)
        if isinstance(event, events.SampleGenerated) and self._samples:
            told = self._samples.lines(event)
        for text in told:
            self._say(text)

    def _say(self, text: str) -> None:
        """A line that stays."""
        drawn = self._clear()
        self._stdout.write(f"{text}\n")
        if drawn and drawn.startswith("step "):
            self._redraw(drawn, due=True)

    def _keep(self) -> None:
        """What is drawn now stays."""
        if self._drawn:
            self._stdout.write("\n")
        self._drawn = ""

    def _clear(self) -> str:
        drawn, self._drawn = self._drawn, ""
        if drawn:
            self._stdout.write(_CLEAR_LINE)
        return drawn


def _sentences(
    event: Event, config: PorosConfig, loaded: events.ModelLoaded | None, *, on_cpu: bool
) -> list[str]:
    match event:
        case events.DataPrepared():
            return [
                f"{event.split}: {event.num_samples} samples of {event.num_rows} rows"
                f" ({event.shape}), {event.num_label_tokens} tokens to learn,"
                f" {event.num_truncated} cut, {event.num_dropped} left out"
            ]
        case events.ModelLoaded():
            from_disk = f", {told_size(event.disk_bytes)} on disk" if event.disk_bytes else ""
            return [
                f"{event.num_blocks} blocks, {told_size(event.host_bytes)} on the host{from_disk};"
                f" {event.num_slots} slots of {told_size(event.slot_bytes)} on the device;"
                f" {event.num_trainable_params} weights to train"
            ]
        case events.EvaluationFinished():
            perplexity = f"perplexity {event.eval_perplexity:.2f}"
            return [f"held-out loss after step {event.step}: {event.eval_loss:.4f}, {perplexity}"]
        case events.CheckpointSaved():
            return [f"checkpoint: {_plain(event.path)} ({told_size(event.size_bytes)})"]
        case events.CheckpointFailed():
            return [f"no checkpoint of step {event.step}, going on: {_plain(event.reason)}"]
        case events.CommandAcknowledged():
            return [f"{event.command}: {event.detail}"]
        case events.RunFinished():
            return summary(event, config, loaded, on_cpu=on_cpu)
        case _:
            return _memory_sentences(event)


def _memory_sentences(event: Event) -> list[str]:
    if isinstance(event, events.MemoryMapped):
        return _map_lines(event)
    if isinstance(event, events.PlanShrunk):
        return [_shrunk_line(event)]
    return plan_lines(event)


def _shrunk_line(event: events.PlanShrunk) -> str:
    """Where memory ran out, and what was done about it."""
    step, phase = event.step, event.phase
    where = f"after step {step}, {phase}" if phase in LOOKS else f"step {step}, {phase}"
    sizes = ""
    if event.cap_bytes:
        sizes = f" ({told_size(event.in_use_bytes)} of {told_size(event.cap_bytes)} in use)"
    return f"{where}: out of device memory{sizes}; now {event.change}, and again, same bits"


def _map_lines(event: events.MemoryMapped) -> list[str]:
    when = "when memory ran out in" if event.ran_out else "at the peak of"
    when = when if event.activations_seen else "after"
    return [
        f"memory {when} step {event.step} ({_plain(event.path)})",
        *map_lines(event.device_bytes, event.host_bytes, activations_seen=event.activations_seen),
    ]


def _plain(text: str) -> str:
    return escape_control(text)
