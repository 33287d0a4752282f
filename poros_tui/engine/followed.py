"""The run that the screens show: its process, its event file as it grows, what that adds up to."""

from __future__ import annotations

import time
from pathlib import Path

from poros_tui.engine.commands import DeviceNow, LiveSample, Watch
from poros_tui.engine.follow import EventReader
from poros_tui.engine.process import Ending, Engine, Start, State, engine_at
from poros_tui.engine.run_state import RunState

TICK_LIMIT_S = 0.02
"""Most time for the events of one tick; the rest waits for the next one."""
_AT_ONCE = 250
_UNREAD_S = 3.0
"""An event file that can't be read for so long is told; at first a run has none."""


class FollowedRun:
    """One run, from the first line of its event file on: going on, finished or killed alike.

    Attributes:
        engine: Its process, whether started here or found.
        run: What its events tell; another object once the file begins anew.
        process: ``starting``, ``running`` or ``ended``.
        ending: How it ended; None while it is there.
        is_behind: The last tick left lines for the next one.
        unread: Why its events can't be read though it goes on, in a sentence; empty: they can.
    """

    def __init__(self, engine: Engine) -> None:
        """Begin to read, in a thread."""
        self.engine = engine
        self.run = RunState()
        self.process: State = engine.poll()
        self.ending: Ending | None = None
        self.is_behind = False
        self.unread = ""
        self._readable_s = time.monotonic()
        self._reader = EventReader(engine.events_path)
        is_new = engine.is_own or self.process == "starting"
        self._began_s = time.time() if is_new else 0.0
        self._watch: Watch | None = None

    @classmethod
    def at(cls, folder: Path) -> FollowedRun:
        """The run of a folder."""
        return cls(engine_at(folder))

    @property
    def folder(self) -> Path:
        """Of the run, absolute."""
        return self.engine.folder

    @property
    def start(self) -> Start | None:
        """What it was started with; None: it was found."""
        return self.engine.start

    @property
    def is_going(self) -> bool:
        """Its process is there."""
        return self.process != "ended"

    @property
    def is_starting(self) -> bool:
        """It has said nothing since it was started; what is told is of a process before it."""
        return self.is_going and self.run.last_s < self._began_s

    @property
    def caught_up(self) -> bool:
        """All that the file held was taken."""
        return self._reader.caught_up

    @property
    def live(self) -> LiveSample | None:
        """What it does at this moment; None: nobody watches, or it doesn't say."""
        return self._watch.latest if self._watch is not None else None

    def watch(self, wanted: bool) -> None:
        """Have live samples, or let them go: the engine makes them only for who watches."""
        if wanted and self.is_going and self._watch is None:
            self._watch = Watch(self.folder)
        elif self._watch is not None and not (wanted and self.is_going):
            self._watch.close()
            self._watch = None

    def tick(self) -> bool:
        """Take what came; whether there was anything. Never waits, and takes little time."""
        process = self.engine.poll()
        changed = process != self.process
        self.process = process
        until_s = time.monotonic() + TICK_LIMIT_S
        while True:
            batch = self._reader.drain(_AT_ONCE)
            if batch.restarted:
                self.run = RunState()
            for line in batch.lines:
                self.run.take(line.event, line.time_s)
            self.run.num_bad_lines += batch.num_damaged
            changed |= batch.restarted or bool(batch.lines)
            self.is_behind = batch.more
            if not batch.more or time.monotonic() > until_s:
                break
        self.ending = self.engine.ending() if process == "ended" else None
        self.unread = self._look_for_trouble()
        return changed

    def _look_for_trouble(self) -> str:
        now_s, why = time.monotonic(), self._reader.trouble
        if not why or self.process != "running":
            self._readable_s = now_s
        if now_s - self._readable_s < _UNREAD_S:
            return ""
        if not self.folder.is_dir():
            return "The run's folder was moved or deleted."
        return f"The run's {self.engine.events_path.name} can't be read: {why}."

    def close(self) -> None:
        """Stop reading; the run itself goes on."""
        self.watch(False)
        self._reader.close()


def card_of(followed: FollowedRun) -> DeviceNow | None:
    """The run's own card, which need not be the first that is seen from here; None: not known."""
    return device_of(followed.run, followed.live) if followed.is_going else None


def device_of(run: RunState, live: LiveSample | None) -> DeviceNow | None:
    """The run's card now: from the live sample, else from the last heartbeat and step."""
    if live is not None:
        return live.device
    beat = run.heartbeat
    if run.is_on_cpu or beat is None or not beat.device_total_bytes:
        return None
    return DeviceNow(
        used=beat.device_used_bytes,
        total=beat.device_total_bytes,
        allocated=beat.device_allocated_bytes,
        reserved=beat.device_reserved_bytes or int(run.steps.last("reserved_bytes")),
        others=beat.device_others_bytes,
    )
