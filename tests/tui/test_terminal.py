"""The terminal is given back however the app ends, and nothing but the app writes to it."""

import os
import signal
import subprocess
import sys

import pytest

from poros_tui import terminal
from tests.tui.pty_bench import ROOT, Terminal

ENDS = [
    ("q", 0),
    ("\x03", 0),
    (signal.SIGTERM, 143),
    (signal.SIGHUP, 129),
    (signal.SIGINT, 130),
]


def ended_by(how, home) -> Terminal:
    """The app after its end; the exit code stands in its process."""
    with Terminal([], home=home) as screen:
        screen.until_shown("1 Home")
        if isinstance(how, str):
            screen.press(how)
        else:
            screen.signal(how)
        screen.ended()
        assert screen.is_restored
        return screen


@pytest.mark.parametrize(("how", "code"), [ENDS[0], ENDS[2]])
def test_the_terminal_is_restored_and_the_exit_code_says_why(how, code, tmp_path):
    assert ended_by(how, tmp_path).process.returncode == code


@pytest.mark.long
@pytest.mark.parametrize(("how", "code"), [ENDS[1], ENDS[3], ENDS[4]])
def test_the_terminal_is_restored_by_the_other_ways_too(how, code, tmp_path):
    assert ended_by(how, tmp_path).process.returncode == code


@pytest.mark.long
def test_a_stopped_app_gives_the_terminal_back_and_draws_again(tmp_path):
    with Terminal([], home=tmp_path) as screen:
        screen.until_shown("1 Home")
        screen.signal(signal.SIGTSTP)
        screen.until(lambda: screen.is_restored, "the terminal given back")
        before = len(screen.written)
        screen.signal(signal.SIGCONT)
        screen.until(lambda: b"\x1b[?1049h" in screen.written[before:], "the screens again")
        screen.until_shown("1 Home")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored


WHILE_WRITING = """
import os, signal
from textual.drivers._writer_thread import WriterThread

write = WriterThread.write

def stopped_within(self, text):
    if "Start the guided setup" in text:
        WriterThread.write = write
        with self._queue.mutex:
            os.kill(os.getpid(), signal.SIGTSTP)
            len(text)  # the signal's handler runs here, if Python runs one
    write(self, text)

WriterThread.write = stopped_within
from poros_tui.cli import main
main()
"""


def test_one_that_is_stopped_while_it_draws_gives_the_terminal_back_too(tmp_path):
    with Terminal(["-c", WHILE_WRITING], home=tmp_path, program=[sys.executable]) as screen:
        screen.until(lambda: b"\x1b[?1049l" in screen.written, "the terminal given back")
        screen.until(lambda: screen.is_restored, "all of it")
        screen.signal(signal.SIGCONT)
        screen.until_shown("1 Home")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored


def drawn_again(screen, start):
    """From a byte on: the terminal was taken anew (until then typed keys are lost), and drawn."""
    taken = screen.written.find(b"\x1b[?1049h", start)
    return taken >= 0 and b"Home" in screen.written[taken:]


def test_one_stopped_without_being_asked_goes_on_and_ends(tmp_path):
    with Terminal([], home=tmp_path) as screen:
        screen.until_shown("1 Home")
        for _ in range(3):
            screen.signal(signal.SIGSTOP)
            before = len(screen.written)
            screen.signal(signal.SIGCONT)
            screen.until(lambda start=before: drawn_again(screen, start), "all drawn again")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored


@pytest.mark.long
def test_a_storm_of_sizes_down_to_one_cell_breaks_nothing(tmp_path):
    with Terminal([], home=tmp_path) as screen:
        screen.until_shown("1 Home")
        for round_ in range(40):
            for size in ((1, 1), (20, 5), (60, 20), (59, 19), (200, 60), (3, 80), (80, 24)):
                screen.resize(*size)
                screen.read(0.01)
            screen.press(str(round_ % 8 + 1))
        screen.resize(80, 24)
        # Keys of the storm may be carried out late: they wait at the screens they were for.
        screen.until(lambda: at_home(screen), "Home")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored


def at_home(screen):
    # Out of the field that a screen may begin in, so that the number is no text.
    screen.press("\x1b")
    screen.read(0.5)
    screen.press("1")
    screen.read(1.0)
    return any("Start the guided setup" in line for line in screen.screen())


LEAK = """
import os, subprocess, sys, warnings
from poros_tui import app

tick = app.PorosApp.tick

async def leaky(self):
    print("leak 1")
    print("leak 2", file=sys.stderr)
    os.write(1, b"leak 3\\n")
    os.write(2, b"leak 4\\n")
    subprocess.run(["sh", "-c", "echo leak 5; echo leak 6 >&2"])
    warnings.warn("leak 7")
    await tick(self)

app.PorosApp.tick = leaky
from poros_tui.cli import main
main()
"""


@pytest.mark.long
def test_nothing_that_libraries_or_children_print_reaches_the_screen(tmp_path):
    with Terminal(["-c", LEAK], home=tmp_path, program=[sys.executable]) as screen:
        screen.until_shown("1 Home")
        screen.read(1.0)
        screen.press("q")
        assert screen.ended() == 0
        assert b"leak" not in screen.written
        log = (tmp_path / "state" / "poros" / "app.log").read_text()
        assert {f"leak {number}" for number in (3, 4, 5, 6)} <= set(log.splitlines())


CRASH = """
from poros_tui import app

async def broken(self):
    raise ZeroDivisionError("on purpose")

app.PorosApp.tick = broken
from poros_tui.cli import main
main()
"""


@pytest.mark.long
def test_a_bug_is_one_line_with_its_crash_file_on_a_restored_terminal(tmp_path):
    with Terminal(["-c", CRASH], home=tmp_path, program=[sys.executable]) as screen:
        assert screen.ended() == 1
        assert screen.is_restored
        after = screen.written.rpartition(b"\x1b[?1049l")[2].decode()
        assert "ZeroDivisionError: on purpose -> a bug in Poros; please report" in after
        assert "Traceback" not in after
        (crash,) = (tmp_path / "cache" / "logs").iterdir()
        assert "on purpose" in crash.read_text()


def without_terminal(*arguments, stdin=subprocess.DEVNULL, **environ):
    paths = os.pathsep.join([str(ROOT / "engine"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", "poros_tui", *arguments],
        stdin=stdin,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": paths} | environ,
        check=False,
    )


@pytest.mark.long
def test_without_a_terminal_no_escape_code_is_written(tmp_path):
    for arguments in ([], ["--ui"], [str(tmp_path / "train.yaml")]):
        done = without_terminal(*arguments)
        assert done.returncode == 2
        assert b"\x1b" not in done.stdout + done.stderr
    # stdin closed altogether
    closed = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -m poros_tui <&-'],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "engine"), str(ROOT)])},
        check=False,
    )
    assert closed.returncode == 2
    assert b"no screens here: stdin is no terminal" in closed.stderr


class Stream:
    """A stream that may be a terminal."""

    def __init__(self, is_terminal):
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize(
    ("streams", "environ", "why"),
    [
        ((True, True, True), {"TERM": "xterm"}, ""),
        ((True, False, True), {"TERM": "xterm"}, "stdout is no terminal"),
        ((None, True, True), {"TERM": "xterm"}, "stdin is no terminal"),
        ((True, True, True), {"TERM": "dumb"}, "TERM is dumb"),
        ((True, True, True), {}, "TERM is not set"),
        ((True, True, True), {"TERM": "xterm", "CI": "true"}, "CI is set"),
        ((True, True, True), {"TERM": "xterm", "CI": "0"}, ""),
    ],
)
def test_screens_open_only_on_a_terminal_that_can_show_them(monkeypatch, streams, environ, why):
    for name, is_terminal in zip(("stdin", "stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, None if is_terminal is None else Stream(is_terminal))
    assert terminal.why_no_screens(environ) == why
