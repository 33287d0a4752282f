"""Tells a running engine what to do, and watches it: the client of the run folder's socket.

Everything here works on a run that somebody else started. The events of a run need none of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from poros.control_place import connect_path, find_socket

Command = Literal["stop", "stop_now", "checkpoint", "pause", "resume"]

ANSWER_LIMIT_S = 5.0
_MOST_BYTES = 1 << 20


class NoEngineError(Exception):
    """Nobody answers at the run's socket; the text says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a command.

    Attributes:
        taken: The engine took it, and says so in its events too.
        detail: In words: what happens now, or why it was not taken.
    """

    taken: bool
    detail: str


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """The card at one moment, in bytes.

    Attributes:
        used: By all processes, as nvidia-smi says.
        total: Of the card.
        allocated: By tensors of this run.
        reserved: By the allocator of this run.
        others: By other processes; None: the driver does not say.
        celsius: Its temperature; None, as of the next two: the driver does not say.
        watts: What it draws.
        slowed: It slows itself down, since it is hot or has too little power.
    """

    used: int
    total: int
    allocated: int
    reserved: int
    others: int | None
    celsius: int | None = None
    watts: float | None = None
    slowed: bool | None = None


@dataclass(frozen=True, slots=True)
class LiveSample:
    """What a run does at one moment.

    Attributes:
        step: The last finished one.
        phase: As in the events' heartbeat.
        blocks: One character a block: ``r`` stays on the card and is there, ``d`` is on the card,
            ``a`` is arriving, ``c`` is computed, ``.`` waits. Empty before the model is loaded.
        direction: ``forward``, ``backward``, or empty between passes.
        computing: The block's index, from 0.
        host_rss_bytes: Of the engine's process.
        device: None without a card.
        unwritten: Why its events are not in the file, such as ``disk full``; empty: they are.
    """

    step: int
    phase: str
    blocks: str
    direction: str
    computing: int | None
    host_rss_bytes: int
    device: DeviceNow | None
    unwritten: str = ""


def order(folder: Path, command: Command, *, limit_s: float = ANSWER_LIMIT_S) -> Answer:
    """Send one command and wait for its answer; call it from a thread, or see `order_later`.

    Args:
        folder: The run's.
        command: ``stop`` finishes the step and saves, ``stop_now`` ends at once and saves nothing,
            ``checkpoint`` saves after the step, ``pause`` waits after the step, ``resume`` goes on.
        limit_s: For the answer, seconds.

    Raises:
        NoEngineError: Nobody is there, or nobody answers in time.
    """
    with _connected(folder, limit_s) as connection:
        try:
            connection.sendall(json.dumps({"command": command}).encode() + b"\n")
            record = _read_answer(connection)
        except TimeoutError:
            raise NoEngineError(f"the engine did not answer within {limit_s:g} s") from None
        except OSError as error:
            raise NoEngineError(f"the engine hung up ({error.strerror or error})") from None
    return Answer(bool(record.get("taken")), str(record.get("detail", "")))


class Pending:
    """A command on its way; ask `done`, then `answer`."""

    def __init__(self) -> None:
        """Not answered yet."""
        self._done = threading.Event()
        self._answer: Answer | None = None

    @property
    def done(self) -> bool:
        """There is an answer."""
        return self._done.is_set()

    @property
    def answer(self) -> Answer | None:
        """None until it is done. That nobody is there is an answer too, not taken."""
        return self._answer

    def wait(self, limit_s: float | None = None) -> Answer | None:
        """Wait for the answer; not for the interface's thread."""
        self._done.wait(limit_s)
        return self._answer

    def _finish(self, answer: Answer) -> None:
        self._answer = answer
        self._done.set()


def order_later(
    folder: Path,
    command: Command,
    *,
    then: Callable[[Answer], None] | None = None,
    limit_s: float = ANSWER_LIMIT_S,
) -> Pending:
    """Send a command from a thread of its own; returns at once, raises nothing.

    Args:
        folder: The run's.
        command: As `order` takes it.
        then: Called in that thread with the answer (Textual's `post_message` may be called so).
        limit_s: As `order` takes it.
    """
    pending = Pending()

    def run() -> None:
        try:
            answer = order(folder, command, limit_s=limit_s)
        except NoEngineError as error:
            answer = Answer(taken=False, detail=str(error))
        pending._finish(answer)
        if then is not None:
            then(answer)

    threading.Thread(target=run, name=f"order {command}", daemon=True).start()
    return pending


class Watch:
    """Keeps the newest live sample of a run, if it has one; connects again when it must.

    A daemon thread; nothing ever waits for it. `close` it when no screen shows the run.
    """

    def __init__(self, folder: Path, *, again_s: float = 1.0) -> None:
        """Start watching.

        Args:
            folder: The run's.
            again_s: Between two tries to connect, seconds.
        """
        self.folder = folder
        self._again_s = again_s
        self._latest: LiveSample | None = None
        self._why_not = ""
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        threading.Thread(target=self._run, name="live watch", daemon=True).start()

    @property
    def latest(self) -> LiveSample | None:
        """The newest; None while nobody sends any."""
        return self._latest

    @property
    def why_not(self) -> str:
        """Why there is none, in a sentence; empty if there is one."""
        return self._why_not

    def close(self) -> None:
        """Stop; returns at once."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._watch()
            except NoEngineError as error:
                self._why_not = str(error)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._why_not = f"the engine's samples can't be read ({error})"
            self._latest = None
            self._closed.wait(self._again_s)

    def _watch(self) -> None:
        with _connected(self.folder, ANSWER_LIMIT_S) as connection:
            self._connection = connection
            connection.sendall(b'{"command": "watch"}\n')
            with connection.makefile("rb") as lines:
                while not self._closed.is_set() and (line := lines.readline(_MOST_BYTES)):
                    record = json.loads(line)
                    if "sample" in record:
                        self._latest, self._why_not = read_sample(record["sample"]), ""
        self._connection = None
        raise NoEngineError("the engine ended")


def read_sample(record: dict[str, Any]) -> LiveSample:
    """A sample from its line's ``sample``.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    device = record.get("device")
    now = None
    if device is not None:
        others, celsius = device["others"], device.get("celsius")
        watts, slowed = device.get("watts"), device.get("slowed")
        now = DeviceNow(
            used=int(device["used"]),
            total=int(device["total"]),
            allocated=int(device["allocated"]),
            reserved=int(device["reserved"]),
            others=None if others is None else int(others),
            celsius=None if celsius is None else int(celsius),
            watts=None if watts is None else float(watts),
            slowed=None if slowed is None else bool(slowed),
        )
    computing = record["computing"]
    return LiveSample(
        step=int(record["step"]),
        phase=str(record["phase"]),
        blocks=str(record["blocks"]),
        direction=str(record["direction"]),
        computing=None if computing is None else int(computing),
        host_rss_bytes=int(record["host_rss_bytes"]),
        device=now,
        unwritten=str(record.get("unwritten", "")),
    )


@contextlib.contextmanager
def _connected(folder: Path, limit_s: float) -> Iterator[socket.socket]:
    place = find_socket(folder)
    if place is None:
        raise NoEngineError("the run has no socket: it ended, or has not begun")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(limit_s)
        try:
            _refuse_foreign(place)
            with connect_path(place) as path:
                connection.connect(path)
        except ConnectionRefusedError:
            raise NoEngineError("the engine is gone; its socket is left over") from None
        except OSError as error:
            reason = error.strerror or error
            raise NoEngineError(f"the engine can't be reached ({reason})") from None
        yield connection
    finally:
        connection.close()


def _refuse_foreign(place: Path) -> None:
    """Only a socket of this user's: another's would learn what we want, and lie to us."""
    found = place.stat()
    if not stat.S_ISSOCK(found.st_mode):
        raise NoEngineError("what lies at the run's socket is none")
    if found.st_uid != os.getuid():
        raise NoEngineError("the run's socket belongs to another user")


def _read_answer(connection: socket.socket) -> dict[str, Any]:
    content = b""
    while not content.endswith(b"\n"):
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionResetError("it closed the connection")
        content += piece
        if len(content) > _MOST_BYTES:
            raise ConnectionResetError("its answer has no end")
    try:
        record = json.loads(content)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"detail": "the engine's answer is unreadable"}
