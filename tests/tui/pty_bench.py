"""The app in a process of its own on a pseudo-terminal: keys go in, a screen comes out.

The screen is what a terminal would show, by the few escape codes that Textual writes.
"""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]
LIMIT_S = 60.0
"""Generous: a busy machine is no failure."""

_CODE = re.compile(
    rb"\x1b\[([?>=<]?)([\d;:]*)([ -/]*)([@-~])"  # with numbers
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[P_^][^\x1b]*\x1b\\"  # with a text
    rb"|\x1b[()][0-9A-Za-z]|\x1b[^][P_^()]"
)


class Terminal:
    """A pseudo-terminal with a process on it, in a session of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        home: Path,
        size: tuple[int, int] = (80, 24),
        program: Sequence[str] = (sys.executable, "-m", "poros_tui"),
        **environ: str,
    ) -> None:
        """Start it; nothing of the user's is read or written, all is below ``home``."""
        self.written = bytearray()
        self._ours, theirs = pty.openpty()
        self._grid = _Grid(*size)
        self.resize(*size)
        self.attributes = termios.tcgetattr(theirs)
        self._theirs = theirs
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        paths = os.pathsep.join([str(ROOT / "engine"), str(ROOT), *filter(None, given)])
        surroundings = {k: v for k, v in os.environ.items() if k not in ("CI", "NO_COLOR")}
        surroundings |= {
            "TERM": "xterm-256color",
            "PYTHONPATH": paths,
            "PYTHONUTF8": "1",
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "POROS_CACHE": str(home / "cache"),
        }
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=surroundings | environ,
            cwd=home,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The process ends, whatever it is at."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self._ours, self._theirs):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def resize(self, columns: int, rows: int) -> None:
        """Another window; the process is told by SIGWINCH."""
        self._grid.resize(columns, rows)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        """Type; keys as terminals send them: an escape character, a carriage return for Enter."""
        os.write(self._ours, keys.encode())

    def read(self, for_s: float = 0.05) -> None:
        """Take what it wrote."""
        until_s = time.monotonic() + for_s
        while (left_s := until_s - time.monotonic()) > 0:
            if not select.select([self._ours], [], [], left_s)[0]:
                return
            try:
                piece = os.read(self._ours, 1 << 16)
            except OSError:
                return
            self.written += piece
            self._grid.feed(piece)

    def until(self, true: Callable[[], bool], what: str, *, within_s: float = LIMIT_S) -> None:
        """Read until something holds.

        Raises:
            AssertionError: It does not, within a generous time.
        """
        limit_s = time.monotonic() + within_s
        while not true():
            assert time.monotonic() < limit_s, f"not seen: {what}\n" + "\n".join(self.screen())
            self.read()

    def until_shown(self, text: str) -> None:
        """Read until the screen shows a text."""
        self.until(lambda: any(text in line for line in self.screen()), text)

    def ended(self) -> int:
        """Read until it ends; its exit code, negative for a signal that ended it."""
        self.until(lambda: self.process.poll() is not None, "its end")
        self.read(0.2)
        return int(self.process.returncode)

    def signal(self, number: signal.Signals) -> None:
        """To the process."""
        self.process.send_signal(number)

    @property
    def is_restored(self) -> bool:
        """The terminal is as it was: modes that were set are reset, and so are its attributes."""
        modes = [b"1049", b"1000", b"1003", b"2004", b"1004"]
        set_again = all(_last(self.written, mode) in (b"l", b"") for mode in modes)
        cursor = _last(self.written, b"25") in (b"h", b"")
        return set_again and cursor and termios.tcgetattr(self._theirs) == self.attributes

    def screen(self) -> list[str]:
        """What a terminal of this size shows now."""
        return ["".join(line).rstrip() for line in self._grid.lines]


def _last(written: bytearray, mode: bytes) -> bytes:
    found = re.findall(rb"\x1b\[\?" + mode + rb"([hl])", written)
    return found[-1] if found else b""


def _num_unfinished(content: bytes) -> int:
    """Bytes at the end that begin a character whose rest is still to come."""
    for num_bytes in range(1, min(4, len(content) + 1)):
        byte = content[-num_bytes]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return num_bytes if num_bytes < length else 0
    return 0


class _Grid:
    """The cells of a screen: moves, line ends and the clearing of all are what Textual needs."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [[" "] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._rest = b""

    def resize(self, columns: int, rows: int) -> None:
        """What was shown stays at its place."""
        lines = [(line + [" "] * columns)[:columns] for line in self.lines]
        self.lines = (lines + [[" "] * columns for _ in range(rows)])[:rows]
        self.columns, self.rows = columns, rows

    def feed(self, piece: bytes) -> None:
        """Take what was written; a code that is not whole waits for its end."""
        content = self._rest + piece
        last = content.rfind(b"\x1b")
        is_cut = last >= 0 and _CODE.match(content, last) is None
        cut = last if is_cut else len(content) - _num_unfinished(content)
        self._rest = content[cut:]
        place = 0
        for code in _CODE.finditer(content, 0, cut):
            self._put(content[place : code.start()].decode("utf-8", "replace"))
            place = code.end()
            self._obey(code)
        self._put(content[place:cut].decode("utf-8", "replace"))

    def _obey(self, code: re.Match[bytes]) -> None:
        if code[4] == b"H" and not code[1]:
            numbers = [int(n or 1) for n in (code[2] or b"").split(b";")]
            self._y, self._x = numbers[0] - 1, [*numbers, 1][1] - 1
        elif code[4] == b"J" or code[0].startswith(b"\x1b[?1049"):
            self.lines = [[" "] * self.columns for _ in range(self.rows)]

    def _put(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._y += 1
            elif character == "\r":
                self._x = 0
            elif self._y < self.rows and self._x < self.columns:
                self.lines[self._y][self._x] = character
                self._x += 1
