"""A run as a whole: the trainer in a worker thread, the main thread for signals and heartbeat."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from poros import events, run_registry, starting_runs
from poros.config import PorosConfig
from poros.config_load import dump_config
from poros.control import Control, StopNow
from poros.control_socket import ControlSocket, Order
from poros.engine_process import LogFiles
from poros.engine_record import write_engine_record
from poros.errors import INTERRUPTED, PorosConfigError, PorosError, PorosModelError
from poros.event_log import EventLog
from poros.events import Event, RunFinished
from poros.home_paths import typed_path
from poros.orders import obey
from poros.progress import Printer
from poros.run_end import failed_event
from poros.run_folder import RunFolder, open_run_folder, read_run
from poros.training.assembly import Assembly
from poros.training.failures import as_poros_error
from poros.training.inputs import Given
from poros.training.live import Live
from poros.training.resume import ResumePoint, find_resume_point
from poros.training.signals import WATCHED, SignalWatch
from poros.training.work import Outcome, Work

HEARTBEAT_S = 5.0
SAMPLE_S = 0.25
"""Between two samples, while somebody watches."""

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
        log_files: Take the process's output into the run's logs; None: it stays where it is.
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
        log_files: LogFiles | None = None,
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
        self._log_files = log_files
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._socket: ControlSocket | None = None
        self._live = Live()
        self._beat_s = 0.0
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
        self._note(event)
        if self._log is None:
            line = events.to_line(event, seq=0, time_s=time.time())
        else:
            line = self._log.append(event)
        for listener in self._listeners:
            listener(event, line)

    def _note(self, event: Event) -> None:
        """Keep what the heartbeat and the end of the run will say."""
        if isinstance(event, events.StepFinished):
            self.step = event.step
        elif isinstance(event, events.PhaseStarted):
            self._phase = event.phase
        elif isinstance(event, events.PhaseFinished):
            self._phase = "train" if self._began else "start"
        elif isinstance(event, events.CheckpointSaved):
            self._checkpoint = event.path
        elif isinstance(event, events.RunStarted):
            self._begin(event)
        self._loaded |= isinstance(event, events.ModelLoaded)

    def _begin(self, event: events.RunStarted) -> None:
        self._began, self._phase = True, "load"
        folder = Path(event.output_dir)
        run_registry.keep(event.run_id, folder)
        if self._handles_signals:
            write_engine_record(folder / "logs")
            starting_runs.forget()
        self._live.device_is(torch.device(event.device.partition(" ")[0]))

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[RunFolder, ResumePoint | None]]:
        """The run folder with its event file, cut to where the run goes on."""
        config, skipped = self.config, list[Event]()
        identity = {"model": config.model_name_or_path, "dataset": config.dataset}
        with open_run_folder(
            typed_path(config.output_dir),
            identity=identity,
            resume=config.resume != "never",
        ) as run:
            if self._log_files is not None:
                self._log_files.take(run.logs)
            point = find_resume_point(run, config.resume, skipped.append)
            in_this_run = point is not None and point.in_this_run
            keep_bytes = point.state.events_bytes if point is not None and in_this_run else 0
            try:
                if not in_this_run:
                    run.record(dump_config(config))
                    run_registry.keep(run.run_id, run.path, instead_of=run.replaces)
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
                    if read_run(run.path) is None:
                        run_registry.forget(run.run_id)

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
            self._live.show,
            needs_model=self._keeps_model,
        )
        if point is not None:
            self.step, self._checkpoint = point.state.step, str(point.folder)
        worker = threading.Thread(target=self._worker, args=(work,), name="trainer", daemon=True)
        with ControlSocket(run.path, self._inbox) as self._socket, self._signals():
            if self._socket.failure:
                message = f"the app can't tell this run anything ({self._socket.failure})"
                self.emit(events.Warned(code="W-control", message=message))
            worker.start()
            interrupted = self._attend()
        worker.join()
        finished = self._finish(run)
        if interrupted:
            raise KeyboardInterrupt
        return finished

    def _attend(self) -> bool:
        """Take signals and orders, beat and show, until the worker has ended; whether by Ctrl-C."""
        interrupted = False
        self._beat_s = time.monotonic() + HEARTBEAT_S
        while True:
            try:
                if self._attend_once():
                    return interrupted
            except KeyboardInterrupt:
                interrupted = True
                self._stop(signal.SIGINT)

    def _attend_once(self) -> bool:
        """Wait for something to do, and do it; whether the worker has ended."""
        assert self._socket is not None
        is_watched = self._socket.is_watched
        left_s = max(self._beat_s - time.monotonic(), 0)
        try:
            message = self._inbox.get(timeout=min(left_s, SAMPLE_S) if is_watched else left_s)
        except queue.Empty:
            message = None
        if isinstance(message, _Done) or self._outcome is not None:
            return True  # the second, if Ctrl-C came between the message and here
        if message is not None:
            self._take(message)
        elif is_watched:
            sample = self._live.sample(self.step, self._phase_now())
            unwritten = self._log.trouble if self._log is not None else ""
            self._socket.show(sample | {"unwritten": unwritten})
        if time.monotonic() >= self._beat_s:
            self.emit(self._live.heartbeat(self.step, self._phase_now()))
            self._beat_s = time.monotonic() + HEARTBEAT_S
        return False

    def _take(self, message: object) -> None:
        """A signal or an order."""
        if isinstance(message, Order):
            if obey(message, self.control, self.emit, step=self.step):
                self._end_now(INTERRUPTED)
            return
        assert isinstance(message, signal.Signals)
        self._stop(message)

    def _phase_now(self) -> str:
        return "pause" if self.control.is_waiting else self._phase

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
        self._end_now(_EXIT_CODES[number.name])

    def _end_now(self, exit_code: int) -> None:
        """End this process, if it is the run's own; the worker was told to give up its step."""
        if self._handles_signals:
            self.emit(self._ended("stopped", Outcome(), exit_code))
            if self._socket is not None:
                self._socket.close()
            # Not by an exception: the worker may be minutes away from the end of its step.
            os._exit(exit_code)

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
        error = as_poros_error(
            outcome,
            self.config,
            step=self.step,
            phase=self._phase,
            folder=run.events_path,
            has_saved=self._checkpoint is not None,
        )
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
            already=outcome.already,
        )
