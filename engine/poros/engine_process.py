"""A process that runs an engine for somebody else: no terminal, its output in the run's logs."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from pathlib import Path

from poros.events import Event, RunFailed, RunFinished

STDOUT_LOG = "stdout.log"
STDERR_LOG = "stderr.log"

_MOST_BYTES_BEFORE = 1 << 16


def leave_terminal() -> None:
    """Be the head of a session of one's own, so that no terminal's end is ours; read no stdin."""
    with contextlib.suppress(PermissionError):  # it is that already
        os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)


class LogFiles:
    """Stdout and stderr of the process, which lie in the run's logs while it has its folder.

    Before and afterwards they are what the process was started with; its last event goes there in
    any case, since a start that is refused leaves no folder.
    """

    def __init__(self) -> None:
        """Nothing changes yet."""
        self._own = {number: os.dup(number) for number in (1, 2)}

    def take(self, logs: Path) -> None:
        """From now on write into the folder `logs`; where it can't be written, go on as before."""
        with contextlib.suppress(OSError):
            for number, name in ((1, STDOUT_LOG), (2, STDERR_LOG)):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                descriptor = os.open(logs / name, flags, 0o666)
                os.write(descriptor, _said_before(self._own[number]))
                os.dup2(descriptor, number)
                os.close(descriptor)
            faulthandler.enable()

    def give_back(self) -> None:
        """Write where the process was started to write."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, own in self._own.items():
            os.dup2(own, number)

    def __call__(self, event: Event, line: str) -> None:
        """Answer whoever started this process with the run's end."""
        if isinstance(event, RunFinished | RunFailed):
            with contextlib.suppress(OSError):
                os.write(self._own[1], line.encode("utf-8", "backslashreplace"))


def _said_before(descriptor: int) -> bytes:
    """What this process wrote so far into memory that only its parent reads, as libraries do."""
    try:
        if os.fstat(descriptor).st_nlink == 0:
            return os.pread(descriptor, _MOST_BYTES_BEFORE, 0)
    except OSError:  # no file, or one that can't be read
        pass
    return b""
