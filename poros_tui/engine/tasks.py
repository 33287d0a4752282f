"""Runs `poros ... --json` in a child process: followed line by line, cancelled, or timed out.

    task = Task(["doctor", "--json"], limit_s=180)
    ...                       # on each tick
    for record in task.drain(): ...      # JSON lines so far
    if task.done: task.result

The child has a session of its own and no terminal. Threads are daemons; nothing waits for them but
`end_all`, at the end of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

PROGRAM = (sys.executable, "-m", "poros")

_alive: set[Task] = set()

State = Literal["running", "done", "cancelled", "timed out"]

_MOST_STDERR_LINES = 200
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended.

    Attributes:
        state: ``done`` whatever its exit code was, ``cancelled`` or ``timed out``.
        exit_code: As documented; None if it had to be ended. -9 and so on: a signal ended it.
        records: The JSON values of its stdout, one a line; lines that are none are left out.
        stderr: Its last lines.
    """

    state: State
    exit_code: int | None
    records: tuple[Any, ...]
    stderr: tuple[str, ...]

    @property
    def document(self) -> Any:
        """The last JSON value, which is the answer of a command that has one; else None."""
        return self.records[-1] if self.records else None

    @property
    def error(self) -> str:
        """What to show if it did not go well, in a line; empty if it did."""
        if self.state == "cancelled":
            return "cancelled"
        if self.state == "timed out":
            return "no answer in time"
        if self.exit_code == 0:
            return ""
        told = [line for line in self.stderr if "error[" in line]
        if told:
            return told[0].partition("]: ")[2] or told[0]
        if self.exit_code is not None and self.exit_code < 0:
            return f"the command was ended by {_signal_name(-self.exit_code)}"
        last = self.stderr[-1] if self.stderr else ""
        return last or f"the command ended with exit code {self.exit_code}"


class Task:
    """A command that runs.

    Attributes:
        arguments: As given.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        limit_s: float | None = 600.0,
        interactive: bool = False,
        environ: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        """Start it; returns at once.

        Args:
            arguments: Of `poros`, without the word itself.
            limit_s: It is ended after so many seconds; None: never.
            interactive: Keep its stdin open for `send`.
            environ: Variables beside those of this process.
            folder: Where it runs; None: here.
        """
        self.arguments = tuple(arguments)
        self._started_s = time.monotonic()
        self._state: State = "running"
        self._records: list[Any] = []
        self._num_drained = 0
        self._stderr: deque[str] = deque(maxlen=_MOST_STDERR_LINES)
        self._result: Result | None = None
        self._ended = threading.Event()
        self._outgoing: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [*PROGRAM, *self.arguments],
            stdin=subprocess.PIPE if interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
            cwd=folder,
            start_new_session=True,
        )
        _alive.add(self)
        readers = [
            self._thread(self._read_stdout),
            self._thread(self._read_stderr),
        ]
        if interactive:
            self._thread(self._write_stdin)
        threading.Thread(
            target=self._wait, args=(readers, limit_s), name="task", daemon=True
        ).start()

    @property
    def done(self) -> bool:
        """It ended, in whatever way."""
        return self._result is not None

    @property
    def result(self) -> Result | None:
        """None while it runs."""
        return self._result

    @property
    def elapsed_s(self) -> float:
        """Since its start, seconds."""
        return time.monotonic() - self._started_s

    def drain(self) -> list[Any]:
        """The JSON values that came since the last call."""
        found = self._records[self._num_drained :]
        self._num_drained += len(found)
        return found

    def send(self, value: Any) -> None:
        """Write a JSON line to its stdin, of an interactive one; returns at once."""
        self._outgoing.put(json.dumps(value, ensure_ascii=False) + "\n")

    def hang_up(self) -> None:
        """Close its stdin, which ends an interactive command."""
        self._outgoing.put(None)

    def cancel(self) -> None:
        """End it and all that it started; returns at once. Nothing if it ended already."""
        self._end("cancelled")

    def wait(self, limit_s: float | None = None) -> Result | None:
        """Wait for its end; not for the interface's thread."""
        self._ended.wait(limit_s)
        return self._result

    def _thread(self, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, name="task pipe", daemon=True)
        thread.start()
        return thread

    def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                with contextlib.suppress(ValueError):
                    self._records.append(json.loads(line))

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            for line in stderr:
                self._stderr.append(line.decode("utf-8", "backslashreplace").rstrip("\n"))

    def _write_stdin(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdin as stdin:
            while (text := self._outgoing.get()) is not None:
                stdin.write(text.encode("utf-8", "backslashreplace"))
                stdin.flush()

    def _end(self, why: State) -> None:
        if self._state == "running" and self._process.poll() is None:
            self._state = why
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _wait(self, readers: list[threading.Thread], limit_s: float | None) -> None:
        code = self._wait_for_process(limit_s)
        # A grandchild may keep the pipes open; what it says then is not waited for.
        for reader in readers:
            reader.join(_GRACE_S)
        self._outgoing.put(None)
        if self._state == "running":
            self._state = "done"
        was_ended = self._state != "done"
        if was_ended:  # what it started may not have heard that it is over
            self._signal(signal.SIGKILL)
        self._result = Result(
            self._state,
            None if was_ended else code,
            tuple(self._records),
            tuple(self._stderr),
        )
        _alive.discard(self)
        self._ended.set()

    def _wait_for_process(self, limit_s: float | None) -> int:
        until_s = None if limit_s is None else self._started_s + limit_s
        killed_from_s: float | None = None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(0.1)
            now_s = time.monotonic()
            if until_s is not None and now_s > until_s:
                self._end("timed out")
            if self._state != "running":
                killed_from_s = killed_from_s or now_s
                if now_s - killed_from_s > _GRACE_S:
                    self._signal(signal.SIGKILL)


def end_all() -> None:
    """End all commands that run, and what they started; waits until they have, a few seconds."""
    tasks = list(_alive)
    for task in tasks:
        task.cancel()
    until_s = time.monotonic() + 3 * _GRACE_S
    for task in tasks:
        task.wait(max(0.0, until_s - time.monotonic()))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
