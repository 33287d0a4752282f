"""A run's socket: orders in, answers and samples out, whatever clients and file systems do."""

import json
import queue
import socket
import stat
from pathlib import Path

import pytest

from poros import control_socket
from poros.control import Control
from poros.control_place import POINTER, SOCKET, connect_path, find_socket
from poros.control_socket import ControlSocket
from poros.orders import obey

LIMIT_S = 20


class Caller:
    """A client that speaks the protocol by hand."""

    def __init__(self, folder):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        with connect_path(find_socket(folder)) as path:
            self.socket.connect(path)
        self.lines = self.socket.makefile("rb")

    def say(self, text):
        self.socket.sendall(text)

    def order(self, command):
        self.say(json.dumps({"command": command}).encode() + b"\n")

    def hear(self):
        return json.loads(self.lines.readline())

    def close(self):
        self.lines.close()
        self.socket.close()


@pytest.fixture
def inbox():
    return queue.SimpleQueue()


@pytest.fixture
def server(tmp_path, inbox):
    with ControlSocket(tmp_path, inbox) as server:
        yield server


@pytest.fixture
def call(tmp_path, server):
    callers = []

    def call():
        callers.append(Caller(tmp_path))
        return callers[-1]

    yield call
    for caller in callers:
        caller.close()


def test_an_order_is_obeyed_answered_and_told_in_an_event(call, inbox):
    control, told, caller = Control(), [], call()

    def take(step=1):
        return obey(inbox.get(timeout=LIMIT_S), control, told.append, step=step)

    for command, taken in [
        ("checkpoint", False), ("checkpoint", True), ("resume", False), ("pause", True),
        ("pause", False), ("resume", True), ("stop", True), ("stop", False), ("stop_now", True),
    ]:  # fmt: skip
        caller.order(command)
        num_told = len(told)
        ends = take(step=0 if (command, taken) == ("checkpoint", False) else 1)
        answer = caller.hear()
        assert (answer["command"], answer["taken"], ends) == (command, taken, command == "stop_now")
        assert answer["detail"]
        assert [event.command for event in told[num_told:]] == [command] * taken
    assert control.is_stopping


def test_nonsense_is_answered_and_the_next_line_is_heard(call, inbox):
    caller = call()
    for text in (b"stop\n", b"[]\n", b"{}\n", b'{"command": ["stop"]}\n', b"\xff\n", b"[" * 3000):
        caller.say(text)
        if text.endswith(b"\n"):
            assert caller.hear()["taken"] is False
    caller.say(b'\n{"command": "st')
    assert caller.hear()["taken"] is False
    caller.say(b'op"}\n')
    assert inbox.get(timeout=LIMIT_S).command == "stop"


def test_a_line_without_an_end_is_hung_up_on(call, inbox):
    caller = call()
    caller.say(b"x" * 5000)
    assert "too long" in caller.hear()["detail"]
    assert caller.lines.readline() == b""
    call().order("pause")
    assert inbox.get(timeout=LIMIT_S).command == "pause"


def test_two_watch_and_one_that_does_not_read_holds_up_nobody(call, server, inbox):
    reader, sleeper, bystander = call(), call(), call()
    assert not server.is_watched
    for caller in (reader, sleeper):
        caller.order("watch")
        obey(inbox.get(timeout=LIMIT_S), Control(), [].append, step=0)
    assert server.is_watched
    assert reader.hear()["taken"]
    blocks = "." * 2000
    for number in range(2000):  # more than any socket keeps for one who does not read
        server.show({"step": number, "blocks": blocks})
        assert reader.hear()["sample"]["step"] == number
    bystander.order("pause")
    assert inbox.get(timeout=LIMIT_S).command == "pause"
    sleeper.hear()
    heard = [sleeper.hear()["sample"]["step"] for _ in range(20)]
    assert heard == list(range(20))
    for caller in (reader, sleeper):
        caller.close()
    for _ in range(100):
        server.show({})
        if not server.is_watched:
            break
        call().order("pause")  # a round through the serving thread
        inbox.get(timeout=LIMIT_S)
    assert not server.is_watched


def test_the_socket_is_this_users_and_goes_with_the_run(tmp_path, inbox):
    with ControlSocket(tmp_path, inbox) as server:
        assert server.failure == ""
        assert stat.S_IMODE((tmp_path / SOCKET).stat().st_mode) == 0o600
        caller = Caller(tmp_path)
        caller.order("pause")
        inbox.get(timeout=LIMIT_S)
    assert caller.lines.readline() == b""
    caller.close()
    assert list(tmp_path.iterdir()) == []


def test_a_socket_that_a_killed_run_left_is_replaced(tmp_path, inbox):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / SOCKET))
    left.close()
    with ControlSocket(tmp_path, inbox):
        caller = Caller(tmp_path)
        caller.order("stop")
        assert inbox.get(timeout=LIMIT_S).command == "stop"
        caller.close()


def test_a_path_that_is_too_long_for_the_kernel_is_reached(tmp_path, inbox):
    folder = tmp_path / ("n" * 255) / ("é" * 40)
    folder.mkdir(parents=True)
    with ControlSocket(folder, inbox) as server:
        assert server.failure == ""
        caller = Caller(folder)
        caller.order("stop")
        assert inbox.get(timeout=LIMIT_S).command == "stop"
        caller.close()
    assert list(folder.iterdir()) == []


def test_where_no_socket_can_lie_the_folder_names_another_place(tmp_path, inbox, monkeypatch):
    run, short = tmp_path / "run", tmp_path / "short"
    run.mkdir()
    short.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    bound = ControlSocket._bound

    def refuse(self, place):
        if place.parent == run:
            raise OSError(95, "Operation not supported")
        return bound(self, place)

    monkeypatch.setattr(ControlSocket, "_bound", refuse)
    with ControlSocket(run, inbox) as server:
        assert server.failure == ""
        assert [path.name for path in run.iterdir()] == [POINTER]
        caller = Caller(run)
        caller.order("stop")
        assert inbox.get(timeout=LIMIT_S).command == "stop"
        caller.close()
        place = find_socket(run)
        assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert not place.exists()
    assert list(run.iterdir()) == []
    monkeypatch.setattr(control_socket, "short_folder", Path("/no/such").stat)
    with ControlSocket(run, inbox) as server:
        assert server.failure == "Operation not supported"
        assert not server.is_watched
    assert list(run.iterdir()) == []
