"""A terminal that sends no keys, takes nothing, or is gone: the app goes on, or ends as told."""

import contextlib
import os
import pty
import select
import signal
import threading

import pytest

from poros_tui import terminal
from tests.tui.live_run import wait_for
from tests.tui.pty_bench import Terminal

ANY_BYTES = bytes(range(128, 256)) + b"\x1b[99999999u\x1b[1114112u\x1b[<0;99999999;1M"
"""Latin-1, keys that there can't be, a click far outside."""


@pytest.fixture
def ends():
    """Of a pseudo-terminal: the one that is read by nobody, and a program's."""
    pair = pty.openpty()
    yield pair
    for descriptor in pair:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_who_writes_to_a_terminal_that_takes_nothing_is_let_go_and_it_is_given_back(ends):
    ours, theirs = ends
    shell = os.dup(theirs)  # or the terminal would hang up
    signal.signal(terminal.WAKES, lambda number, frame: None)
    stream = terminal._text(theirs)

    def write():
        stream.write("x" * 100_000)
        stream.flush()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(0.3)
    assert writer.is_alive()
    terminal._let_go([theirs])
    writer.join(30)
    assert not writer.is_alive()
    shown = b""
    while select.select([ours], [], [], 1.0)[0]:
        shown += os.read(ours, 1 << 16)
    assert terminal._GIVEN_BACK in shown
    stream.close()
    os.close(shell)


def test_a_terminal_that_is_gone_ends_no_writer(ends):
    ours, theirs = ends
    stream = terminal._text(theirs)
    os.close(ours)
    for _ in range(3):
        assert stream.write("x" * 100_000) == 100_000
        stream.flush()


@pytest.mark.long
def test_bytes_that_are_no_keys_end_nothing(tmp_path):
    with Terminal([], home=tmp_path) as screen:
        screen.until_shown("Start the guided setup")
        for at in range(0, len(ANY_BYTES), 32):
            os.write(screen._ours, ANY_BYTES[at : at + 32])
            screen.read(0.2)
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored
        assert b"Quit" in screen.written


def fill(screen):
    """It draws and nobody reads, until the terminal takes no more."""
    for number in range(300):
        screen.resize(80 + number % 2 * 60, 24 + number % 2 * 20)
        threading.Event().wait(0.03)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_app_on_a_terminal_that_takes_nothing(number, tmp_path):
    with Terminal([], home=tmp_path) as screen:
        screen.until_shown("Start the guided setup")
        fill(screen)
        screen.signal(number)
        assert wait_for(lambda: screen.process.poll() is not None, "its end")
        screen.read(0.5)
        assert screen.process.returncode == 128 + number
        assert screen.is_restored


@pytest.mark.long
def test_an_app_ends_with_its_terminal(tmp_path):
    with Terminal([], home=tmp_path) as screen:
        screen.until_shown("Start the guided setup")
        fill(screen)
        os.close(screen._ours)
        os.close(screen._theirs)
        assert wait_for(lambda: screen.process.poll() is not None, "its end")
        assert screen.process.returncode == 129
