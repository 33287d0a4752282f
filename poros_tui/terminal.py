"""The terminal: may screens open on it, and while they do, who writes to it."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

_MOST_LOG_BYTES = 1 << 20


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

    return platformdirs.user_state_path("poros", appauthor=False) / "app.log"


@contextlib.contextmanager
def only_ours(log: Path) -> Iterator[None]:
    """Keep the terminal for the app's own driver.

    Descriptors 1 and 2 lead to a log, also for libraries and child processes that write to them
    directly; Textual draws on copies, through ``sys.__stdout__`` and ``sys.__stderr__``.
    """
    sys.stdout.flush()
    sys.stderr.flush()
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
        yield
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


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _text(descriptor: int) -> TextIO:
    encoding = sys.stdout.encoding or "utf-8"
    return os.fdopen(descriptor, "w", encoding=encoding, errors="replace", closefd=False)


def _opened(log: Path) -> int:
    """The log, begun anew when it has grown large; without one, nowhere."""
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        fresh = log.exists() and log.stat().st_size > _MOST_LOG_BYTES
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0)
        return os.open(log, flags, 0o600)
    return os.open(os.devnull, os.O_WRONLY)
