"""Runs without screens: the same engine process and the same events, printed as lines.

The engine goes on if this process is killed. A signal that it gets goes on to the engine, and its
exit code is the engine's; `attach` only looks, and leaves the run alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from poros import events, runs
from poros.cli_guard import Guard
from poros.cli_train import train
from poros.errors import INTERRUPTED, PorosError, escape_control
from poros.home_paths import typed_path
from poros.progress import JsonPrinter, LinePrinter, Printer
from poros_tui.engine.commands import Command, NoEngineError, order
from poros_tui.engine.follow import Follower, Line
from poros_tui.engine.process import Ending, Engine, find_run, start_engine
from poros_tui.engine.silence import Silence

if TYPE_CHECKING:
    from poros.config import PorosConfig

LOOK_EVERY_S = 0.1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOCKED = 7
"""The exit code of a run that did not get its folder: what happens there is another's."""

_LAST = (events.RunFinished, events.RunFailed)
_OLD = (
    events.RunStarted,
    events.PlanMade,
    events.ModelLoaded,
    events.EvaluationFinished,
    events.StepFinished,
    events.RunFinished,
)
"""Of what was before one attached, the last of each is told."""


class _Shown:
    """What a run tells, on stdout; and why, while it can't."""

    def __init__(self, engine: Engine, config: PorosConfig, *, json_lines: bool) -> None:
        lines: Printer = LinePrinter(config, sys.stdout, sys.stderr)
        self._printer = JsonPrinter(sys.stdout) if json_lines else lines
        self._silence = Silence(engine.folder, lambda told: _tell(f"poros: {told}\n"))
        self.latest: Line | None = None

    def __call__(self, line: Line) -> None:
        self.latest = line
        self._silence.heard()
        self._printer(line.event, line.text)

    def look(self) -> None:
        """Nothing came just now."""
        self._silence.look()

    def end(self, ending: Ending) -> None:
        """The last event, if the file has no room for it, or there never was one."""
        self._silence.close()
        is_told = self.latest is not None and isinstance(self.latest.event, _LAST)
        event = events.from_line(ending.event_line) if ending.event_line else None
        if event is not None and not is_told:
            self(Line(event, 0, time.time(), ending.event_line))
        self._silence.close()


def train_headless(
    guard: Guard, path: Path, /, *, json_lines: bool, settings: Sequence[str], **options: Any
) -> int:
    """Train as `poros train` does, in an engine process of its own; returns its exit code.

    Args:
        guard: As `poros.cli_train.train` takes it.
        path: The YAML file.
        json_lines: Events as JSON lines on stdout.
        settings: Texts of ``--set``.
        options: The other options of a training run.
    """

    def run(config: PorosConfig) -> int:
        _tell_others(typed_path(config.output_dir))
        words = ["run", str(path), *(w for text in settings for w in ("--set", text))]
        started_s = time.time()
        engine = start_engine(typed_path(config.output_dir), words + _flags(options))
        show = _Shown(engine, config, json_lines=json_lines)
        with _forwarding(engine, but=(signal.SIGHUP,) if config.survive_hangup else ()):
            _follow_own(engine, show, started_s)
        return _end_own(engine, show)

    return train(guard, path, json_lines=json_lines, settings=tuple(settings), run=run, **options)


def attach_headless(name: str | None, *, json_lines: bool) -> int:
    """Follow a run until it ends; returns its exit code, or 130 if one leaves it by Ctrl-C.

    Args:
        name: The run's folder, or the beginning of its number; None: the one that goes on.
        json_lines: All its events as JSON lines; else what was before is told in a few lines.

    Raises:
        PorosError: There is no such run.
    """
    engine = find_run(name)
    try:
        if _has_begun(engine):
            _follow_found(engine, json_lines=json_lines)
    except KeyboardInterrupt:
        sys.stderr.write(f"\nleft; the run goes on: poros-tui attach {engine.folder}\n")
        return INTERRUPTED
    ending = engine.ending()
    assert ending is not None
    if ending.status in ("failed", "killed", "lost"):
        _tell_failure(ending)
    return 1 if ending.exit_code is None else ending.exit_code


def _has_begun(engine: Engine) -> bool:
    """Wait for it: a run that starts for the first time has no folder, and no config, for seconds.

    False: it ended before.
    """
    config, was_told = engine.folder / "config.yaml", False
    while not config.is_file():
        if engine.poll() == "ended":
            return False
        if not was_told:
            _tell(f"poros: the run is starting: {escape_control(str(engine.folder))}\n")
            was_told = True
        time.sleep(LOOK_EVERY_S)
    return True


def _follow_found(engine: Engine, *, json_lines: bool) -> None:
    from poros.config_load import load_config

    config = load_config(engine.folder / "config.yaml", environ={}).config
    show = _Shown(engine, config, json_lines=json_lines)
    with contextlib.closing(Follower(engine.events_path)) as follower:
        _catch_up(follower, show, whole=json_lines)
        while engine.poll() != "ended":
            _show_all(follower, show)
            show.look()
            time.sleep(LOOK_EVERY_S)
        _show_all(follower, show)
    ending = engine.ending()
    assert ending is not None
    show.end(ending)


def _tell_others(folder: Path) -> None:
    """Nobody can be asked here; that of this folder is refused by the engine."""
    here = typed_path(folder).resolve()
    others = [str(path) for path in runs.going_on() if path.resolve() != here]
    if others:
        named = escape_control(", ".join(others))
        _tell(f"poros: beside this run another one is going on, which takes memory too: {named}\n")


def _follow_own(engine: Engine, show: _Shown, started_s: float) -> None:
    """Show what the engine does until it has ended."""
    had_folder, last_s = False, started_s
    with contextlib.closing(Follower(engine.events_path)) as follower:
        while (state := engine.poll()) != "ended":
            had_folder |= state == "running"
            if had_folder:
                last_s = _show_new(follower, show, last_s)
                show.look()
            time.sleep(LOOK_EVERY_S)
        # Once more: what it wrote last is in the file by now. It may have had its folder for less
        # than a look.
        if had_folder or engine.exit_code != LOCKED:
            _show_new(follower, show, last_s)


def _show_new(follower: Follower, show: _Shown, last_s: float) -> float:
    """What was written after a moment; returns when the last of it was.

    A folder that is gone on in has the lines of earlier processes too.
    """
    while True:
        batch = follower.poll()
        for line in batch.lines:
            if line.time_s > last_s:
                last_s = line.time_s
                show(line)
        if not batch.more and not batch.restarted:
            return last_s


def _end_own(engine: Engine, show: _Shown) -> int:
    """Tell what no event told: a start that was refused, a crash, a kill."""
    ending = engine.ending()
    assert ending is not None
    show.end(ending)
    # What libraries say lies in the run's logs.
    ours = [line for line in engine.told().splitlines() if line.startswith("poros: ")]
    if ours:
        _tell("\n".join(ours) + "\n")
    elif ending.status == "killed":
        _tell("" if engine.logs.is_dir() else engine.told())
        _tell_failure(ending)
    return 1 if ending.exit_code is None else ending.exit_code


def _catch_up(follower: Follower, show: Callable[[Line], None], *, whole: bool) -> None:
    """Show what was before one came: all of it, or the last of each kind."""
    lines = list(_there_now(follower))
    if not whole:
        latest: dict[type[events.Event], Line] = {}
        for line in lines:
            if isinstance(line.event, events.RunStarted):
                latest.clear()
            if isinstance(line.event, _OLD):
                latest[type(line.event)] = line
        lines = sorted(latest.values(), key=lambda line: line.seq)
    for line in lines:
        show(line)


def _there_now(follower: Follower) -> Iterable[Line]:
    lines: list[Line] = []
    while True:
        batch = follower.poll()
        lines = [*([] if batch.restarted else lines), *batch.lines]
        if not batch.more:
            return lines


def _show_all(follower: Follower, show: Callable[[Line], None]) -> None:
    while True:
        batch = follower.poll()
        if batch.restarted:  # the run was started again meanwhile
            _catch_up(follower, show, whole=False)
            return
        for line in batch.lines:
            show(line)
        if not batch.more:
            return


@contextlib.contextmanager
def _forwarding(engine: Engine, but: Sequence[signal.Signals]) -> Iterator[None]:
    """Signals of this process are the engine's; one that is ignored (nohup) stays ignored."""

    def forward(number: int, frame: FrameType | None) -> None:
        engine.send(signal.Signals(number))

    def suspend(number: int, frame: FrameType | None) -> None:
        """The shell takes this process aside (Ctrl-Z): the run waits after its step meanwhile."""
        waits = _is_taken(engine, "pause")
        os.kill(os.getpid(), signal.SIGSTOP)
        if waits:
            _is_taken(engine, "resume")

    handlers = dict.fromkeys(FORWARDED, forward) | dict.fromkeys(but, signal.SIG_IGN)
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in (handlers | {signal.SIGTSTP: suspend}).items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_taken(engine: Engine, command: Command) -> bool:
    try:
        return order(engine.folder, command, limit_s=2).taken
    except NoEngineError:
        return False


def _flags(options: dict[str, Any]) -> list[str]:
    """The words of a command line that give these options."""
    words = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value not in (None, False):
            words += [flag, str(value)]
    return words


def _tell_failure(ending: Ending) -> None:
    error = PorosError(ending.message, where=ending.where, remediation=ending.remediation)
    code = ending.code or "E-killed"
    _tell(f"poros: error[{code}]: {error}\n")


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # a stderr that takes nothing changes no exit code
