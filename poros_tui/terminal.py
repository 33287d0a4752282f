"""The terminal: may screens open on it, and while they do, who writes to it."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

from poros.home_paths import typed_path

_MOST_LOG_BYTES = 1 << 20
WAKES = signal.SIGURG
"""Ends a write that stands still; nothing else sends it."""
_GIVEN_BACK = (
    b"\x1b[?2004l\x1b[?7h\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l"
    b"\x1b[<u\x1b[?1049l\x1b[?25h\x1b[?1004l"
)
"""What the driver's end writes: no mouse, no pasted brackets, the shell's lines, a cursor."""


def why_no_screens(environ: Mapping[str, str]) -> str:
    """Why screens can't open here, in a few words; empty: they can."""
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr)):
        if not _is_terminal(stream):
            return f"{name} is no terminal"
    term = environ.get("TERM", "")
    if term in ("", "dumb"):
        return f"TERM is {term or 'not set'}"
    if environ.get("CI", "") not in ("", "0", "false"):
        return "CI is set"
    return ""


def log_file() -> Path:
    """Where all goes that is written to stdout or stderr while screens are open."""
    import platformdirs

    return typed_path(platformdirs.user_state_path("poros", appauthor=False)) / "app.log"


@contextlib.contextmanager
def only_ours(log: Path) -> Iterator[Callable[[], None]]:
    """Keep the terminal for the app's own driver.

    Descriptors 1 and 2 lead to a log, also for libraries and child processes that write to them
    directly; Textual draws on copies, through ``sys.__stdout__`` and ``sys.__stderr__``.

    Yields what lets go of a terminal that takes nothing: it is given back, what waits for it is
    lost, and who writes to it waits no longer. For any thread.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(WAKES, lambda number, frame: None)
    kept = {number: os.dup(number) for number in (1, 2)}
    before = (sys.__stdout__, sys.__stderr__)
    target = _opened(log)
    for number in kept:
        os.dup2(target, number)
    streams = [_text(kept[number]) for number in (1, 2)]
    sys.__stdout__, sys.__stderr__ = streams  # type: ignore[misc, assignment]
    # stderr as Python sees it stays on the log; a crash of the interpreter is written there too.
    faulthandler.enable(file=target)
    try:
        yield lambda: _let_go(list(kept.values()))
    finally:
        faulthandler.disable()
        sys.__stdout__, sys.__stderr__ = before  # type: ignore[misc]
        for stream in streams:
            # The terminal may be gone.
            with contextlib.suppress(OSError):
                stream.close()
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(target)


def _let_go(descriptors: list[int]) -> None:
    with contextlib.suppress(OSError, termios.error):
        name = os.ttyname(descriptors[-1])
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in descriptors:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)
        ours = os.open(name, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        for _ in range(100):
            _wake_writers()  # they go on into nowhere
            termios.tcflush(ours, termios.TCOFLUSH)
            with contextlib.suppress(BlockingIOError):
                os.write(ours, _GIVEN_BACK)
                break
            time.sleep(0.02)
        os.close(ours)


def _wake_writers() -> None:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.ident is not None:
            with contextlib.suppress(OSError):
                signal.pthread_kill(thread.ident, WAKES)


class _Lasting(io.TextIOWrapper):
    """A terminal may go at any time; a writer that ended by that would stop all who wait for it."""

    def write(self, text: str) -> int:
        """As of any file; nothing where the terminal is gone."""
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        """As of any file; nothing where the terminal is gone."""
        with contextlib.suppress(OSError):
            super().flush()


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _text(descriptor: int) -> TextIO:
    encoding = sys.stdout.encoding or "utf-8"
    raw = io.FileIO(descriptor, "w", closefd=False)
    return _Lasting(io.BufferedWriter(raw), encoding=encoding, errors="replace")


def _opened(log: Path) -> int:
    """The log, begun anew when it has grown large; without one, nowhere."""
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        fresh = log.exists() and log.stat().st_size > _MOST_LOG_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0)
        return os.open(log, flags, 0o600)
    return os.open(os.devnull, os.O_WRONLY)
