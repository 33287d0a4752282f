"""The engine as a process: started here in a session of its own, or found at its run folder.

An engine that was started here goes on when this process ends, however it ends. Nothing here waits:
`Engine.poll` may be called on each tick.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from poros import run_folder, runs, starting_runs
from poros.engine_process import STDERR_LOG, STDOUT_LOG
from poros.engine_record import ENGINE_RECORD, read_oom_kills
from poros.errors import PorosConfigError
from poros.event_log import last_line
from poros.events import RunFailed, RunFinished, from_line
from poros.home_paths import typed_path
from poros_tui.engine.child import Child
from poros_tui.engine.follow import last_lines
from poros_tui.engine.run_list import newest_checkpoint

PROGRAM = (sys.executable, "-m", "poros")

State = Literal["starting", "running", "ended"]
"""``starting``: its process is there, but does not have its run folder yet."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run's process ended, in words.

    Attributes:
        status: ``finished``, ``stopped`` (asked to), ``failed`` (it says why), ``killed`` (it
            ended without a word) or ``lost`` (without its folder nobody knows).
        exit_code: As documented; 128 + the signal for one that was killed; None: nobody knows.
        message: What happened, in a sentence without a full stop.
        where: File, line, key or step it is about; empty: none.
        remediation: The change or the command that mends it; empty: none is needed.
        code: Of the error, such as ``E-model``; empty: there was none.
        log_lines: The last lines that the process wrote.
        event_line: The last event as it stands in the event file; empty: it ended without one.
    """

    status: Literal["finished", "stopped", "failed", "killed", "lost"]
    exit_code: int | None
    message: str
    where: str = ""
    remediation: str = ""
    code: str = ""
    log_lines: tuple[str, ...] = ()
    event_line: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """What a run is started with.

    Attributes:
        config: Its YAML file.
        settings: ``key=value`` texts, as of ``--set``.
        flags: More words of `poros train`, such as ``--resume never``.
    """

    config: Path
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Of `poros`'s hidden command ``run``."""
        sets = [word for text in self.settings for word in ("--set", text)]
        return ["run", str(self.config), *sets, *self.flags]

    def folder(self, environ: Mapping[str, str] | None = None) -> Path:
        """Where it would write, absolute. Reads and checks the config: a tenth of a second.

        Raises:
            PorosConfigError: The config is wrong; all problems at once.
        """
        from poros.config_load import load_config

        config = load_config(self.config, settings=self.settings, environ=environ).config
        return typed_path(config.output_dir).absolute()


class Engine:
    """A run's engine process.

    Attributes:
        folder: The run's folder, absolute.
        is_own: It was started here.
        start: What it was started with; None: it was found.
    """

    def __init__(
        self, folder: Path, child: Child | None = None, start: Start | None = None
    ) -> None:
        """Use `start_run`, `find_run` or `engine_at`."""
        self.folder = folder
        self.is_own = child is not None
        self.start = start
        self._child = child
        self._had_folder = False
        self._holder: int | None = None
        self._seen_starting_s = 0.0
        self._ending: Ending | None = None

    @property
    def events_path(self) -> Path:
        """The event file; it may not be there yet."""
        return self.folder / "events.jsonl"

    @property
    def logs(self) -> Path:
        """The folder with ``stdout.log``, ``stderr.log`` and crash files."""
        return self.folder / "logs"

    @property
    def pid(self) -> int | None:
        """Of the process; None where it can't be told, or there is none."""
        if self._child is not None:
            return self._child.pid
        if holder := run_folder.holder_pid(self.folder):
            return holder
        starting = starting_runs.starting_in(self.folder)
        return starting.pid if starting else None

    @property
    def exit_code(self) -> int | None:
        """Of one that was started here and ended; 128 + the signal if one ended it."""
        return self._child.exit_code if self._child is not None else None

    def poll(self) -> State:
        """Whether it is there; asks the kernel, and for one that starts a small folder."""
        if self._child is not None:
            if self.exit_code is not None:
                return "ended"
            # Another run may have the folder, and this one is about to be refused it.
            self._had_folder |= run_folder.holder_pid(self.folder) == self._child.pid
            return "running" if self._had_folder else "starting"
        if run_folder.is_held(self.folder):
            state: State = "running"
            if self._holder is None or self._ending is not None:
                self._holder = run_folder.holder_pid(self.folder)
        elif starting_runs.starting_in(self.folder):
            self._seen_starting_s, state = time.time(), "starting"
        else:
            return "ended"
        self._ending = None  # that of a process before this one
        return state

    def ending(self) -> Ending | None:
        """How it ended; None while it is there. Reads a few kilobytes, once."""
        if self._ending is None and self.poll() == "ended":
            if self._child is None and not self.folder.is_dir() and self._holder is not None:
                return _lost(self._holder)  # asked anew: it may be put back, or end
            self._ending = self._told_ending()
        return self._ending

    def told(self) -> str:
        """What it wrote to its first stderr, before and after it had the run folder; own only."""
        return self._child.stderr_text() if self._child is not None else ""

    def kill(self) -> bool:
        """End it at once, as the kernel does; the last checkpoint stays. False: it was not there.

        The way to ask it first: `commands.order` with ``stop`` or ``stop_now``.
        """
        if self._child is not None and self.poll() != "ended":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)  # it heads a group of its own
                return True
        return self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; False: it is not there, or not on this machine."""
        pid = self.pid if self.poll() != "ended" else None
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _told_ending(self) -> Ending:
        code, line = self.exit_code, last_line(self.events_path)
        if self._child is not None:
            # A folder that is gone on in may end with the line of an earlier process.
            line = self._child.answer()
        elif _written_s(self.folder) < self._seen_starting_s:
            return Ending(
                "failed",
                None,
                "the engine ended before the run began",
                remediation="what stopped it stands where it was started",
            )
        last = from_line(line) if line else None
        if last is None and self._child is None and not self.events_path.is_file():
            return Ending(
                "killed",
                None,
                f"nobody knows how it ended: its {self.events_path.name} is gone",
                remediation="put the file back, or start the run again",
            )
        if isinstance(last, RunFinished):
            finished, code = last.status == "finished", last.exit_code if code is None else code
            message = "the run is done" if finished else "the run was stopped"
            return Ending("finished" if finished else "stopped", code, message, event_line=line)
        if isinstance(last, RunFailed):
            return Ending(
                "failed",
                last.exit_code if code is None else code,
                last.message,
                last.where,
                last.remediation,
                last.code,
                self._log_lines(),
                line,
            )
        return _killed(self.folder, code, self._log_lines())

    def _log_lines(self) -> tuple[str, ...]:
        names = (STDOUT_LOG, STDERR_LOG)
        lines = [line for name in names for line in last_lines(self.logs / name)]
        return tuple(lines or self.told().splitlines()[-30:])


def start_run(
    config: Path,
    *,
    settings: Sequence[str] = (),
    flags: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Engine:
    """Start a run as a child process that outlives this one; returns at once.

    Reads and checks the config first (a tenth of a second: from a thread, if that matters). What
    is wrong with model, data or folder is found by the child: see `Engine.ending`.

    Args:
        config: Its YAML file.
        settings: ``key=value`` texts, as of ``--set``.
        flags: More words of `poros train`, such as ``--resume never``.
        environ: The child's whole environment; None: this process's.

    Raises:
        PorosConfigError: The config is wrong; all problems at once.
    """
    start = Start(config, tuple(settings), tuple(flags))
    return _begun(start.folder(environ), Child([*PROGRAM, *start.words], environ), start)


def start_engine(
    folder: Path, words: Sequence[str], *, environ: Mapping[str, str] | None = None
) -> Engine:
    """Start `poros` with words of its hidden command ``run``.

    Args:
        folder: Where the run will write.
        words: The command line.
        environ: The child's whole environment; None: this process's.
    """
    return _begun(typed_path(folder).absolute(), Child([*PROGRAM, *words], environ))


def _begun(folder: Path, child: Child, start: Start | None = None) -> Engine:
    """Its process has no folder for seconds: others know of it from now on."""
    starting_runs.note(folder, child.pid)
    return Engine(folder, child, start)


def engine_at(folder: Path) -> Engine:
    """The engine of a run folder, whether it is there or has ended."""
    return Engine(typed_path(folder).absolute())


def find_run(name: str | None = None, places: Iterable[Path] = ()) -> Engine:
    """The run that `attach` is about.

    Args:
        name: Its folder, or the beginning of its number; None: the one that runs now, or else the
            latest one.
        places: Folders to look in, beside those that are remembered.

    Raises:
        PorosConfigError: There is none, or several run.
    """
    if name is not None:
        return engine_at(runs.find_run(name).path)
    running = runs.going_on(places)
    if len(running) > 1:
        named = ", ".join(map(str, running))
        raise PorosConfigError(
            f"{len(running)} runs are going on", remediation=f"name one of them: {named}"
        )
    found = [run.path for run in runs.known_runs(places) if not run.gone]
    for path in running or sorted(found, key=_written_s, reverse=True):
        return engine_at(path)
    raise PorosConfigError("there is no run yet", remediation="poros-tui starts one")


def _written_s(folder: Path) -> float:
    """When a run wrote last."""
    try:
        return (folder / "events.jsonl").stat().st_mtime
    except OSError:
        return 0.0


def _lost(pid: int) -> Ending:
    """The words for a run without its folder; whose process may be there nevertheless."""
    message, remediation = (
        "the run's folder was moved or deleted",
        "8 Runs shows it where it is now",
    )
    try:
        os.kill(pid, 0)
    except PermissionError:
        pass
    except ProcessLookupError:
        return Ending("lost", None, message, remediation=remediation)
    message += ", and its engine goes on without it"
    remediation = f"put the folder back; {remediation}; `kill {pid}` stops it"
    return Ending("lost", None, message, remediation=remediation)


def _killed(folder: Path, code: int | None, lines: tuple[str, ...]) -> Ending:
    """The words for a process that ended without any."""
    saved = newest_checkpoint(folder)
    again = "start it again: "
    if saved is None:
        again += "nothing was saved yet, so it begins anew"
    else:
        again += f"it goes on from step {saved}"
    if _ran_out_of_memory(folder):
        return Ending(
            "killed",
            code or 128 + signal.SIGKILL,
            "the system ended the engine because the machine ran out of memory",
            remediation=f"close other programs, then {again}",
            code="E-host-memory",
            log_lines=lines,
        )
    if code is None:
        message = "the engine ended without a word: it was killed, or the machine went down"
    elif code > 128:
        message = f"the engine was ended from outside, by {_signal_name(code - 128)}"
    else:
        message = f"the engine ended with exit code {code}"
    return Ending("killed", code, message, remediation=again, log_lines=lines)


def _ran_out_of_memory(folder: Path) -> bool:
    """Whether the system ended a process of the engine's group for memory since it started."""
    try:
        record = json.loads((folder / "logs" / ENGINE_RECORD).read_text("utf-8"))
        before, place = record["oom_kills"], record["cgroup"]
        if record["host"] != socket.gethostname() or before is None:
            return False
    except (OSError, ValueError, KeyError, TypeError):
        return False
    now = read_oom_kills(typed_path(str(place)))
    return now is not None and now > before


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
