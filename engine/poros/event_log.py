"""`events.jsonl`: whole lines only, for one writer and any number of readers.

Each line goes out in one `write()` on a file opened with O_APPEND, so that a reader sees lines and
at most one unterminated tail, which it ignores. A line that the disk refuses is taken back and
written before the next one. A resumed run cuts the file to the offset that its checkpoint stored.

How a run ended must be known on a full disk too: a small file beside it holds the room for that
line while the run goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from poros import atomic, events, failpoints
from poros.events import Event, RunFailed, RunFinished

_LAST_BYTES = 256 << 10
APART = "events.last"
"""The small file beside an event file. A run that was killed leaves it."""
_APART_BYTES = 4096
"""One block of most disks: it can be written over without more room."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class EventLog:
    """The one writer of an event file."""

    def __init__(self, path: Path, *, keep_bytes: int | None = None, held: bool = False) -> None:
        """Open for appending.

        Args:
            path: Made when it is not there.
            keep_bytes: Cut the file to so many bytes first; None keeps all whole lines.
            held: Change nothing, and keep new lines in memory, until `release`.
        """
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        content = path.read_bytes()[:keep_bytes]
        self._num_bytes = content.rfind(b"\n") + 1
        self._seq = content.count(b"\n")
        self._unwritten: list[bytes] = []
        self._failure: OSError | None = None
        self._path = path
        self._lock = threading.Lock()
        self._held = held
        if not held:
            self._begin()

    @property
    def trouble(self) -> str:
        """Why lines wait that should be in the file, in a few words; empty: none do."""
        failure = self._failure
        if failure is None or not self._unwritten:
            return ""
        return "disk full" if failure.errno in _FULL else str(failure.strerror or failure)

    def release(self) -> None:
        """Cut the file as asked for, and write the lines that waited."""
        with self._lock:
            if self._held:
                self._held = False
                self._begin()
                self._write_all()

    def __enter__(self) -> EventLog:
        """Nothing more to do."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def append(self, event: Event) -> str:
        """Write the event's line and return it."""
        with self._lock:
            line = events.to_line(event, seq=self._seq, time_s=time.time())
            self._seq += 1
            # A path's undecodable bytes become JSON escapes.
            self._unwritten.append(line.encode("utf-8", "backslashreplace"))
            self._write_all()
            if self._unwritten and isinstance(event, RunFinished | RunFailed):
                self._write_apart(self._unwritten[-1])
            return line

    def sync(self) -> int:
        """Bring the file to the disk; its length then belongs into a checkpoint.

        A closed one is there already.

        Raises:
            PorosStorageError: Lines are missing in the file, or the disk failed.
        """
        with self._lock:
            if self._descriptor < 0:
                return self._num_bytes
            self._write_all()
            try:
                if self._unwritten:
                    raise self._failure or OSError(errno.EIO, os.strerror(errno.EIO))
                os.fsync(self._descriptor)
            except OSError as error:
                raise atomic.storage_error(error, self._path) or error from error
            return self._num_bytes

    def close(self) -> None:
        """Close the file; later lines are not written."""
        with self._lock, contextlib.suppress(OSError):
            os.close(self._descriptor)
            # Whoever writes later must not meet another file that has the same number by then.
            self._descriptor = -1
            if not self._held and not self._unwritten:
                _apart(self._path).unlink(missing_ok=True)

    def _begin(self) -> None:
        """Cut the file, and take the room for the last line."""
        os.ftruncate(self._descriptor, self._num_bytes)
        with contextlib.suppress(OSError):
            _apart(self._path).write_bytes(b"\n" * _APART_BYTES)

    def _write_apart(self, line: bytes) -> None:
        """Where there is room for it."""
        if len(line) <= _APART_BYTES:
            with contextlib.suppress(OSError), _apart(self._path).open("r+b") as file:
                file.write(line)

    def _write_all(self) -> None:
        while self._unwritten and not self._held and self._write(self._unwritten[0]):
            del self._unwritten[0]

    def _write(self, line: bytes) -> bool:
        try:
            failpoints.hit("events.write")
            num_written = os.write(self._descriptor, line)
        except OSError as error:
            self._failure = error
            return False
        if num_written < len(line):
            self._failure = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(self._descriptor, self._num_bytes)
            return False
        self._num_bytes += num_written
        return True


def read_lines(path: Path) -> Iterator[str]:
    """The whole lines that the event file has now; an unterminated tail is left out.

    An ending that found no room in it comes last.
    """
    line = b""
    with path.open("rb") as file:
        num_left = path.stat().st_size  # a fast writer must not keep a reader busy for ever
        for raw in file:
            num_left -= len(raw)
            if num_left < 0 or not raw.endswith(b"\n"):
                break
            line = raw
            yield line.decode("utf-8")
    apart = _line_apart(path)
    if apart and apart != line:
        yield apart.decode("utf-8")


def read_events(path: Path) -> Iterator[Event]:
    """The records of an event file; kinds of a later version are left out."""
    for line in read_lines(path):
        event = events.from_line(line)
        if event is not None:
            yield event


def last_line(path: Path) -> str:
    """The last line of an event file that this version knows, with its newline; empty: none."""
    if apart := _line_apart(path):
        return apart.decode("utf-8")
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            content = file.read()
    except OSError:
        return ""
    for line in reversed(content[: content.rfind(b"\n") + 1].splitlines(keepends=True)):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            text = line.decode("utf-8")
            if events.from_line(text) is not None:
                return text
    return ""


def _apart(path: Path) -> Path:
    """The file with room for the last line of an event file."""
    return path.with_name(APART)


def _line_apart(path: Path) -> bytes:
    """An ending that found no room in the event file; empty: there is none."""
    try:
        line = _apart(path).read_bytes().split(b"\n", 1)[0] + b"\n"
        return line if events.from_line(line.decode("utf-8")) is not None else b""
    except (OSError, ValueError, KeyError, TypeError):
        return b""
