"""Reads a run's events as they come, line by line, and the ends of its logs.

A follower never waits for the writer and never writes. It takes whole lines only; a torn tail stays
for the next look. A resumed run cuts its event file, a started-anew one has another: both are
noticed, and the reading starts again from the first line.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from poros import events
from poros.events import Event

MOST_BYTES = 1 << 18
"""Read at one look: some hundred lines, ten milliseconds."""
MOST_WAITING = 50_000
"""Lines that wait for whoever drains, before a reading thread stops reading."""

_MARK_BYTES = 128
"""Of a line's begin: its kind, its number, and the time at which it was written."""
_LONGEST_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an event file.

    Attributes:
        event: Its record.
        seq: Its number in the file, from 0.
        time_s: When it was written, seconds since the epoch.
        text: As it stands in the file, with its newline.
    """

    event: Event
    seq: int
    time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What a look found.

    Attributes:
        lines: In the file's order; kinds of event that this version does not know are left out.
        restarted: The file was cut or replaced: forget all lines before these.
        more: There is more to read at once.
        num_damaged: Lines that are no events; they are passed over.
    """

    lines: tuple[Line, ...] = ()
    restarted: bool = False
    more: bool = False
    num_damaged: int = 0


class Follower:
    """Reads an event file from its first line on, a piece a look. For one thread.

    Attributes:
        trouble: Why what has its name can't be read, in a few words; empty: it can.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read yet; the file may come later."""
        self.path = path
        self.trouble = ""
        self._descriptor = -1
        self._offset = 0
        self._mark, self._mark_offset = b"", 0

    def poll(self, most_bytes: int = MOST_BYTES) -> Batch:
        """The lines that came since the last look; never waits, never raises for a file's state.

        Args:
            most_bytes: To read now; a longer line is read whole.
        """
        restarted = False
        try:
            restarted = self._follow_replaced()
            if self._descriptor < 0:
                return Batch(restarted=restarted)
            content = self._read(most_bytes)
            if self._was_cut():  # asked after the reading: before, it might still be cut then
                self._rewind()
                restarted, content = True, self._read(most_bytes)
            size_bytes = os.fstat(self._descriptor).st_size
        except OSError:
            return Batch(restarted=restarted)
        lines, num_damaged = _parsed(content)
        if content:
            last = content.rfind(b"\n", 0, -1) + 1
            self._mark = content[last : last + _MARK_BYTES]
            self._mark_offset = self._offset + last
        self._offset += len(content)
        more = bool(content) and self._offset < size_bytes
        return Batch(tuple(lines), restarted, more, num_damaged)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def _follow_replaced(self) -> bool:
        """Open the file; change to another one of the same name once this one is read through."""
        try:
            named = self._named()
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self.trouble = ""
                return False
            self.trouble = ""
        except OSError as error:
            # Removed, or a folder by now: what was written until then can still be read.
            self.trouble = str(error.strerror or error).lower()
            return False
        ours = os.fstat(self._descriptor)
        same = (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)
        if same or self._read(MOST_BYTES):
            return False
        self.close()
        self._rewind()
        self._follow_replaced()
        return True

    def _named(self) -> os.stat_result:
        """What has the file's name."""
        named = self.path.stat()
        if not stat.S_ISREG(named.st_mode):
            raise OSError("it is no file")
        return named

    def _was_cut(self) -> bool:
        """Whether the last line that we read is not there any more.

        A resumed run repeats its steps exactly, but not at the same time.
        """
        mark = os.pread(self._descriptor, len(self._mark), self._mark_offset)
        return mark != self._mark or os.fstat(self._descriptor).st_size < self._offset

    def _rewind(self) -> None:
        self._offset = 0
        self._mark, self._mark_offset = b"", 0

    def _read(self, most_bytes: int) -> bytes:
        """Whole lines from our place on."""
        content = os.pread(self._descriptor, most_bytes, self._offset)
        if len(content) == most_bytes and b"\n" not in content:
            content = os.pread(self._descriptor, _LONGEST_LINE_BYTES, self._offset)
        return content[: content.rfind(b"\n") + 1]


def _parsed(content: bytes) -> tuple[list[Line], int]:
    """Lines, and how many are damaged."""
    lines, num_damaged = list[Line](), 0
    for raw in content.splitlines(keepends=True):
        try:
            text = raw.decode("utf-8")
            record = json.loads(text)
            event = events.from_record(record)
            if event is not None:
                lines.append(Line(event, int(record["seq"]), float(record["time_s"]), text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            num_damaged += 1
    return lines, num_damaged


class EventReader:
    """Follows an event file in a thread of its own; the interface drains what came.

    The thread is a daemon and waits for nobody. While too much waits, it stops reading.
    """

    def __init__(self, path: Path, *, every_s: float = 0.1) -> None:
        """Start reading.

        Args:
            path: The event file; it may come later.
            every_s: Between two looks at a file that does not grow.
        """
        self.path = path
        self._follower = Follower(path)
        self._every_s = every_s
        self._lock = threading.Lock()
        self._waiting: deque[Line] = deque()
        self._restarted = False
        self._num_damaged = 0
        self._caught_up = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event reader", daemon=True)
        self._thread.start()

    @property
    def caught_up(self) -> bool:
        """All that the file had at the last look was read and drained."""
        return self._caught_up and not self._waiting

    @property
    def trouble(self) -> str:
        """As the follower has it."""
        return self._follower.trouble

    def drain(self, most_lines: int = 5_000) -> Batch:
        """What came since the last call, at most so many lines; never waits for the file."""
        with self._lock:
            num = min(most_lines, len(self._waiting))
            lines = tuple(self._waiting.popleft() for _ in range(num))
            restarted, self._restarted = self._restarted, False
            num_damaged, self._num_damaged = self._num_damaged, 0
            return Batch(lines, restarted, bool(self._waiting), num_damaged)

    def close(self) -> None:
        """Stop reading; returns at once."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            if len(self._waiting) > MOST_WAITING:
                self._closed.wait(self._every_s)
                continue
            batch = self._follower.poll()
            with self._lock:
                if batch.restarted:
                    self._waiting.clear()
                    self._restarted = True
                self._waiting.extend(batch.lines)
                self._num_damaged += batch.num_damaged
                self._caught_up = not batch.more
            if not batch.more:
                self._closed.wait(self._every_s)
        self._follower.close()


def last_lines(path: Path, most: int = 30) -> list[str]:
    """The last lines of a log, an unterminated one too; none if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (64 << 10)))
            content = file.read()
    except OSError:
        return []
    return content.decode("utf-8", "backslashreplace").splitlines()[-most:]
