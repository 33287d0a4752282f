"""The process of an engine that was started here, and what it says before it has a folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import weakref
from collections.abc import Mapping, Sequence

from poros.events import RunFailed, RunFinished, from_line

_started: list[subprocess.Popen[bytes]] = []
"""Kept, for Python warns of one that is let go of while it runs; ours may outlive this process."""


class Child:
    """It outlives this process; nothing here waits for it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start it in a session of its own, without a terminal."""
        # In memory and without names: a full disk loses nothing, and nothing is left behind.
        self._stdout = os.memfd_create("engine-stdout", os.MFD_CLOEXEC)
        self._stderr = os.memfd_create("engine-stderr", os.MFD_CLOEXEC)
        for descriptor in (self._stdout, self._stderr):
            weakref.finalize(self, os.close, descriptor)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=self._stdout,
            stderr=self._stderr,
            env=None if environ is None else dict(environ),
            start_new_session=True,
        )
        _started.append(self._process)
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + the signal if one ended it."""
        with self._lock:
            code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def stderr_text(self) -> str:
        """What it wrote to the stderr that it was started with."""
        return _content(self._stderr)

    def answer(self) -> str:
        """The run's last event, which the process writes to its first stdout; empty: none."""
        for line in reversed(_content(self._stdout).splitlines(keepends=True)):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if isinstance(from_line(line), RunFinished | RunFailed):
                    return line
        return ""


def _content(descriptor: int) -> str:
    size_bytes = os.fstat(descriptor).st_size
    content = os.pread(descriptor, min(size_bytes, 1 << 20), max(0, size_bytes - (1 << 20)))
    return content.decode("utf-8", "backslashreplace")
