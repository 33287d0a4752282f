"""Parts of files, read by several threads into memory that is there already.

They are read, not mapped: a mapped page counts as the process's memory, and a disk that fails kills
a process that looks at one, where a read gives an error.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from poros.errors import PorosModelError
from poros.os_errors import refused
from poros.weights_index import DOWNLOAD_AGAIN

PIECE_BYTES = 8 * 2**20
"""Of one read: large enough for a disk's full rate, small enough to share out one tensor."""

MAX_THREADS = 16

_CHANGED = "it was changed since it was opened"


@dataclass(frozen=True)
class FilePart:
    """Where some bytes lie."""

    file: Path
    offset_bytes: int
    num_bytes: int


Wanted = Sequence[tuple[FilePart, Tensor]]
"""Parts, and where each one goes: a tensor on the host of as many bytes."""


class FileReader:
    """Threads that read, and the files that they have open.

    A file stays the one that was opened: if another takes its name, the first is read on.
    """

    def __init__(self) -> None:
        """Start no thread and open nothing yet."""
        num_threads = min(MAX_THREADS, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="poros-read")
        self._lock = threading.Lock()
        self._files: dict[Path, _OpenFile] = {}
        self._close_files = weakref.finalize(self, _close_all, self._files)

    def hold(self, path: Path) -> None:
        """Open a file now: it is an error if it changes from here on.

        Raises:
            PorosModelError: It can't be opened.
        """
        with _errors_of(path):
            self._open(path)

    def start(self, wanted: Wanted, then: Callable[[], None] | None = None) -> Future[None]:
        """Read in the background.

        Args:
            wanted: What, and to where.
            then: Is called in one of the threads when all of it is there.

        Returns:
            Done after that. Its ``result()`` raises PorosModelError if a file can't be read, became
            shorter, or was changed since it was opened.
        """
        job = _Job(then)
        for part, target in wanted:
            view = target.detach().view(-1).view(torch.uint8).numpy().data
            assert len(view) == part.num_bytes, (part, target.shape)
            for begin in range(0, part.num_bytes, PIECE_BYTES):
                piece = view[begin : begin + PIECE_BYTES]
                job.add(self._pool, self._read, part.file, part.offset_bytes + begin, piece)
        job.sealed(self._pool)
        return job.future

    def close(self) -> None:
        """End the threads and close the files; what was not read yet never is."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._close_files()

    def __enter__(self) -> FileReader:
        """Scope the threads."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _read(self, path: Path, offset_bytes: int, view: memoryview) -> None:
        with _errors_of(path):
            file = self._open(path)
            file.check()
            done = 0
            while done < len(view):
                count = os.preadv(file.descriptor, [view[done:]], offset_bytes + done)
                if not count:
                    raise OSError(None, "the file became shorter while it was read")
                done += count
            file.check()  # else the last part that a run reads could be another file's

    def _open(self, path: Path) -> _OpenFile:
        with self._lock:
            if path not in self._files:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._files[path] = _OpenFile(descriptor, _stamp(descriptor))
            return self._files[path]


@dataclass(frozen=True)
class _OpenFile:
    descriptor: int
    stamp: tuple[int, int]

    def check(self) -> None:
        if _stamp(self.descriptor) != self.stamp:
            raise OSError(None, _CHANGED)


class _Job:
    """One `start`: its pieces, counted down."""

    def __init__(self, then: Callable[[], None] | None) -> None:
        self.future: Future[None] = Future()
        self._then = then
        self._lock = threading.Lock()
        self._num_left = 1  # until it is sealed
        self._error: BaseException | None = None

    def add(self, pool: ThreadPoolExecutor, read: Callable[..., None], *arguments: object) -> None:
        with self._lock:
            self._num_left += 1
        pool.submit(self._run, read, *arguments)

    def sealed(self, pool: ThreadPoolExecutor) -> None:
        pool.submit(self._run, _nothing)

    def _run(self, read: Callable[..., None], *arguments: object) -> None:
        try:
            if self._error is None:
                read(*arguments)
        except BaseException as error:  # noqa: BLE001  # it is raised where the result is asked for
            self._error = error
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        if is_last:
            self._finish()

    def _finish(self) -> None:
        try:
            if self._error is None and self._then is not None:
                self._then()
        except BaseException as error:  # noqa: BLE001  # as above
            self._error = error
        if self._error is not None:
            self.future.set_exception(self._error)
        else:
            self.future.set_result(None)


def _close_all(files: dict[Path, _OpenFile]) -> None:
    for file in files.values():
        os.close(file.descriptor)
    files.clear()


def _nothing() -> None:
    """The seal of a job reads nothing."""


def _stamp(descriptor: int) -> tuple[int, int]:
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_mtime_ns


@contextlib.contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise refused(
            PorosModelError,
            "the model's file can't be read",
            error,
            where=path,
            remediation="start again, and leave the model's files alone while a run reads them"
            if error.strerror == _CHANGED
            else DOWNLOAD_AGAIN,
        ) from error
