"""The app ends in the middle of something: nothing of it goes on, and the terminal is given back.

Each in a process of its own on a pseudo-terminal.
"""

import signal
import sys

import psutil
import pytest

from tests.tui.live_run import wait_for
from tests.tui.pty_bench import Terminal

STUBBORN = """
import os, signal, sys
from pathlib import Path
from poros_tui.engine import tasks
from poros_tui.cli import main

tasks.PROGRAM = (sys.executable, "-c", '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
open(f"{os.getpid()}.pid", "w")
time.sleep(600)
''')
main()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "code"),
    [("q", 0), ("\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
@pytest.mark.parametrize("screen_of", ["2", "3", "d"])
def test_no_command_outlives_the_app(screen_of, way, code, tmp_path):
    """Neither one that can't be asked to end, nor what it has started."""
    with Terminal(["-c", STUBBORN], home=tmp_path, program=[sys.executable]) as screen:
        screen.until_shown("Start the guided setup")
        screen.press(screen_of)

        def begun():
            return [int(path.stem) for path in tmp_path.glob("*.pid")]

        screen.until(lambda: len(begun()) == 2, "a command and what it started")
        if isinstance(way, signal.Signals):
            screen.signal(way)
        else:
            screen.press("\x11" if way == "q" and screen_of == "d" else way)
        assert screen.ended() == code
        assert screen.is_restored
        wait_for(lambda: not any(map(_is_at_work, begun())), "the end of what it started")


def _is_at_work(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


BUG = """
from poros_tui.engine import run_list

def broken(self):
    raise ZeroDivisionError("on purpose")

run_list.RunList.read_now = broken
from poros_tui.cli import main
main()
"""


@pytest.mark.long
def test_a_bug_in_a_thread_ends_the_app_as_any_other(tmp_path):
    with Terminal(["-c", BUG], home=tmp_path, program=[sys.executable]) as screen:
        assert screen.ended() == 1
        assert screen.is_restored
        after = screen.written.rpartition(b"\x1b[?1049l")[2].decode()
        assert "ZeroDivisionError: on purpose -> a bug in Poros; please report" in after
        (crash,) = (tmp_path / "cache" / "logs").iterdir()
        assert "in broken" in crash.read_text()
