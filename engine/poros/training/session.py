"""A run as a whole: the trainer in a worker thread, the main thread for signals and heartbeat."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import torch
import transformers

from poros import events, run_registry
from poros.config import PorosConfig
from poros.config_load import dump_config
from poros.control import Control, StopNow
from poros.errors import PorosConfigError, PorosDeviceLostError, PorosError, PorosModelError
from poros.event_log import EventLog
from poros.events import Event, RunFinished
from poros.progress import JsonPrinter, LinePrinter, Printer
from poros.run_folder import RunFolder, open_run_folder
from poros.training.assembly import Assembly
from poros.training.failures import as_poros_error, failed_event
from poros.training.inputs import Given
from poros.training.resume import ResumePoint, find_resume_point
from poros.training.signals import WATCHED, SignalWatch
from poros.training.telemetry import host_rss_bytes
from poros.training.work import Outcome, Work

HEARTBEAT_S = 5.0

_EXIT_CODES = {number.name: 128 + number for number in WATCHED}


class _Done:
    """The worker ended."""


class Session:
    """One run of a config, in this process.

    Args:
        config: Its settings.
        listeners: Called with each event and its line, in the thread it comes from.
        handle_signals: Take SIGINT, SIGTERM and SIGHUP, as a command does. Otherwise Ctrl-C
            finishes the step, checkpoints and comes out as KeyboardInterrupt.
        memory_map: Write down what lies in memory at the peak of the highest step.
        starting_s: What the process took to get here, seconds; None: not told.
        given: Data in place of what the config names.
        keep_model: Hand the model over after the run, as `assembly`.
    """

    def __init__(
        self,
        config: PorosConfig,
        *,
        listeners: Sequence[Printer] = (),
        handle_signals: bool = False,
        memory_map: bool = False,
        starting_s: float | None = None,
        given: Given | None = None,
        keep_model: bool = False,
    ) -> None:
        """Nothing happens yet."""
        self.config = config
        self.control = Control()
        self.step = 0
        self._listeners = list(listeners)
        self._handles_signals = handle_signals
        self._memory_map = memory_map
        self._starting_s = starting_s
        self._given, self._keeps_model = given, keep_model
        self.assembly: Assembly | None = None
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._log: EventLog | None = None
        self._phase = "start"
        self._began = False
        self._loaded = False
        self._checkpoint: str | None = None
        self._outcome: Outcome | BaseException | None = None
        self._started_s = time.monotonic()

    def run(self) -> RunFinished:
        """Train to the end, or to a stop.

        Raises:
            PorosError: It failed; the event file says so too.
            KeyboardInterrupt: Ctrl-C, after the checkpoint.
        """
        self._started_s = time.monotonic()
        try:
            with self._open() as (run, point):
                finished = self._run_in(run, point)
        except PorosError as error:
            if self._log is None:
                self.emit(failed_event(error, step=self.step))
            raise
        return finished

    def emit(self, event: Event) -> None:
        """Write an event to the event file and show it to the listeners."""
        if isinstance(event, events.StepFinished):
            self.step = event.step
        elif isinstance(event, events.PhaseStarted):
            self._phase = event.phase
        elif isinstance(event, events.PhaseFinished):
            self._phase = "train" if self._began else "start"
        elif isinstance(event, events.CheckpointSaved):
            self._checkpoint = event.path
        elif isinstance(event, events.RunStarted):
            self._began, self._phase = True, "load"
            run_registry.keep(event.run_id, Path(event.output_dir))
        self._loaded |= isinstance(event, events.ModelLoaded)
        if self._log is None:
            line = events.to_line(event, seq=0, time_s=time.time())
        else:
            line = self._log.append(event)
        for listener in self._listeners:
            listener(event, line)

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[RunFolder, ResumePoint | None]]:
        """The run folder with its event file, cut to where the run goes on."""
        config, skipped = self.config, list[Event]()
        identity = {"model": config.model_name_or_path, "dataset": config.dataset}
        with open_run_folder(
            Path(config.output_dir).expanduser(),
            identity=identity,
            resume=config.resume != "never",
        ) as run:
            point = find_resume_point(run, config.resume, skipped.append)
            in_this_run = point is not None and point.in_this_run
            keep_bytes = point.state.events_bytes if point is not None and in_this_run else 0
            try:
                if not in_this_run:
                    run.record(dump_config(config))
                # A start that is refused must leave the run that is there as it is.
                with EventLog(
                    run.events_path, keep_bytes=keep_bytes, held=in_this_run
                ) as self._log:
                    if self._starting_s is not None:
                        self.emit(events.PhaseFinished(phase="start", duration_s=self._starting_s))
                    for warning in skipped:
                        self.emit(warning)
                    yield run, point
            except (PorosConfigError, PorosModelError):
                # The last of the input is checked while the model is put together.
                self._began = self._loaded
                raise
            finally:
                if not self._began:
                    run.discard()

    def _run_in(self, run: RunFolder, point: ResumePoint | None) -> RunFinished:
        assert self._log is not None
        work = Work(
            self.config,
            run,
            self._log,
            self.emit,
            self.control,
            point,
            self._memory_map,
            self._given,
        )
        if point is not None:
            self.step, self._checkpoint = point.state.step, str(point.folder)
        worker = threading.Thread(target=self._worker, args=(work,), name="trainer", daemon=True)
        interrupted = False
        with self._signals():
            worker.start()
            while True:
                try:
                    message = self._inbox.get(timeout=HEARTBEAT_S)
                except queue.Empty:
                    self._beat()
                except KeyboardInterrupt:
                    interrupted = True
                    self._stop(signal.SIGINT)
                else:
                    if isinstance(message, _Done):
                        break
                    assert isinstance(message, signal.Signals)
                    self._stop(message)
        worker.join()
        finished = self._finish(run)
        if interrupted:
            raise KeyboardInterrupt
        return finished

    def _signals(self) -> contextlib.AbstractContextManager[object]:
        if not self._handles_signals:
            return contextlib.nullcontext()
        return SignalWatch(self._inbox, survive_hangup=self.config.survive_hangup)

    def _worker(self, work: Work) -> None:
        try:
            outcome = work.run()
            if self._keeps_model:
                self.assembly = outcome.assembly
            self._outcome = dataclasses.replace(outcome, assembly=None)
        except BaseException as error:  # noqa: BLE001  whatever it is, the main thread tells it
            self._outcome = error
        self._inbox.put(_Done())

    def _stop(self, number: signal.Signals) -> None:
        """A first signal stops after the step, a second one at once."""
        if not self.control.is_stopping:
            self.control.stop(number.name)
            detail = "finishing the step and saving; once more stops at once"
            self.emit(events.CommandAcknowledged(command=number.name, detail=detail))
            return
        self.control.stop_now()
        if self._handles_signals:
            self.emit(self._ended("stopped", Outcome(), _EXIT_CODES[number.name]))
            # Not by an exception: the worker may be minutes away from the end of its step.
            os._exit(_EXIT_CODES[number.name])

    def _finish(self, run: RunFolder) -> RunFinished:
        outcome = self._outcome
        if isinstance(outcome, StopNow):
            outcome = Outcome(stopped="SIGINT")
        if isinstance(outcome, Outcome):
            code = 0 if outcome.stopped is None else _EXIT_CODES.get(outcome.stopped, 0)
            status = "finished" if outcome.stopped is None else "stopped"
            finished = self._ended(status, outcome, code)
            self.emit(finished)
            return finished
        assert isinstance(outcome, BaseException)
        error = as_poros_error(outcome, self.config, step=self.step, folder=run.events_path)
        if error is None:
            message = f"{type(outcome).__name__}: {outcome}"
            self.emit(failed_event(PorosError(message), step=self.step))
            raise outcome
        self.emit(failed_event(error, step=self.step))
        raise error from (None if error is outcome else outcome)

    def _ended(self, status: str, outcome: Outcome, exit_code: int) -> RunFinished:
        return RunFinished(
            status=status,
            step=self.step,
            final_loss=outcome.loss,
            adapter_path=str(outcome.adapter) if outcome.adapter else None,
            checkpoint_path=self._checkpoint,
            duration_s=time.monotonic() - self._started_s,
            peak_vram_allocated_bytes=outcome.peak_allocated_bytes,
            peak_vram_reserved_bytes=outcome.peak_reserved_bytes,
            exit_code=exit_code,
        )

    def _beat(self) -> None:
        free_bytes, total_bytes = (0, 0)
        if torch.cuda.is_initialized():
            free_bytes, total_bytes = torch.cuda.mem_get_info()
        self.emit(
            events.Heartbeat(
                step=self.step,
                phase="pause" if self.control.is_paused else self._phase,
                host_rss_bytes=host_rss_bytes(),
                device_used_bytes=total_bytes - free_bytes,
                device_total_bytes=total_bytes,
            )
        )


def _quiet_libraries() -> None:
    """Only our own lines: what the libraries say to developers helps no user of a command."""
    warnings.simplefilter("ignore", FutureWarning)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    # It tells each try of a download, and the error that we then show.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def run_session(
    config: PorosConfig,
    *,
    json_lines: bool,
    memory_map: bool = False,
    began_s: float | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run a config as a command does: print, take signals, return the exit code.

    Args:
        config: Its settings.
        json_lines: Print events, not lines for people.
        memory_map: As `Session` takes it.
        began_s: When the command began, by the monotonic clock; None: nobody noted it.
        stdout: The process's own, if left out.
        stderr: The process's own, if left out.
    """
    _quiet_libraries()
    lines = LinePrinter(config, stdout or sys.stdout, stderr or sys.stderr)
    printer: Printer = JsonPrinter(stdout or sys.stdout) if json_lines else lines
    session = Session(
        config,
        listeners=[printer],
        handle_signals=True,
        memory_map=memory_map,
        starting_s=None if began_s is None else time.monotonic() - began_s,
    )
    try:
        return session.run().exit_code
    except PorosError as error:
        lines.fail(error.lines())
        if isinstance(error, PorosDeviceLostError):
            # A device in a sticky error must not be called again, as destructors would.
            os._exit(error.exit_code)
        return error.exit_code
