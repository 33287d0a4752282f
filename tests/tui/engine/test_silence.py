"""A run that goes on and writes nothing is asked why, and what it says is told once."""

import queue

import pytest

from poros.control_socket import ControlSocket
from poros_tui.engine import silence
from poros_tui.engine.silence import Silence
from tests.tui.engine.test_process import wait_for

SAMPLE = {
    "step": 3, "phase": "train", "blocks": "", "computing": None, "direction": "",
    "host_rss_bytes": 1, "device": None,
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    inbox = queue.SimpleQueue()
    with ControlSocket(tmp_path, inbox) as run:
        yield tmp_path, run, inbox


def test_a_full_disk_is_told_once_and_again_when_it_is_full_again(run, monkeypatch):
    folder, socket, inbox = run
    told = []
    silent = Silence(folder, told.append)
    silent.look()
    assert not socket.is_watched  # it may write yet
    monkeypatch.setattr(silence, "SILENT_S", 0.0)
    for num in (1, 2):

        def look(num=num):
            silent.look()
            while not inbox.empty():
                inbox.get().watch()
            socket.show(SAMPLE | {"unwritten": "disk full"})
            return len(told) == num

        wait_for(look)
        assert told[-1] == "the run can't write what it does: disk full; it goes on, make room"
        wait_for(lambda: not socket.is_watched)
        silent.look()
        assert not socket.is_watched
        silent.heard()
    silent.close()


def test_one_that_is_only_slow_is_asked_and_nothing_is_told(run, monkeypatch):
    folder, socket, inbox = run
    told = []
    monkeypatch.setattr(silence, "SILENT_S", 0.0)
    silent = Silence(folder, told.append)

    def was_asked():
        silent.look()
        while not inbox.empty():
            inbox.get().watch()
        socket.show(SAMPLE | {"unwritten": ""})
        return silent._watch.latest is not None

    wait_for(was_asked)
    silent.look()
    assert told == []
    silent.close()
    wait_for(lambda: not socket.is_watched)
