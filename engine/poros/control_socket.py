"""The socket of a running engine: orders come in as JSON lines, answers and samples go out.

One daemon thread serves all clients and waits for none of them. Orders go into the inbox of the
session's main thread. A client that reads slowly misses samples; one that says nonsense is told so.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
import time
from pathlib import Path
from typing import Any

from poros.atomic import write_file
from poros.control_place import POINTER, SOCKET, connect_path, find_socket, short_folder
from poros.errors import PorosStorageError

COMMANDS = ("stop", "stop_now", "checkpoint", "pause", "resume", "watch")

_MOST_CLIENTS = 32
_LONGEST_LINE_BYTES = 4096
_MOST_PENDING_BYTES = 1 << 16


class Order:
    """A command that a client sent.

    Attributes:
        command: One of `COMMANDS`.
    """

    def __init__(self, command: str, client: Client) -> None:
        """Not answered yet."""
        self.command = command
        self._client = client

    def answer(self, detail: str, *, taken: bool = True) -> None:
        """Tell the client what becomes of it; one that is gone is told nothing."""
        self._client.send({"command": self.command, "taken": taken, "detail": detail})

    def watch(self) -> None:
        """Let the client have samples from now on."""
        self._client.watches = True


class Client:
    """A connection; `send` may be called from any thread and never waits."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connection that was accepted."""
        connection.setblocking(False)
        self.connection = connection
        self.watches = False
        self.is_closed = False
        self.received = b""
        self._pending = b""
        self._lock = threading.Lock()

    @property
    def has_pending(self) -> bool:
        """Not all that was sent has gone out."""
        return bool(self._pending)

    def send(self, record: dict[str, Any], *, droppable: bool = False) -> None:
        """Send a line, or drop it where the ones before have not gone out."""
        with self._lock:
            if self.is_closed or (droppable and self._pending):
                return
            self._pending += json.dumps(record, ensure_ascii=False).encode() + b"\n"
            self._flush()

    def flush(self) -> None:
        """Send what is left."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Hang up."""
        with self._lock:
            self.is_closed = True
            self.watches = False
            self.connection.close()

    def _flush(self) -> None:
        if self.is_closed:
            return
        try:
            self._pending = self._pending[self.connection.send(self._pending) :]
        except BlockingIOError:
            pass
        except OSError:
            self._pending, self.watches = b"", False
        if len(self._pending) > _MOST_PENDING_BYTES:  # it asks and never reads
            self._pending, self.watches = b"", False


class ControlSocket:
    """Listens in a run's folder, or near it, until it is closed.

    Args:
        folder: The run's, held by this process: a socket that lies there is a dead one's.
        inbox: Takes an `Order` for each command.

    Attributes:
        failure: Why nobody can connect; empty: one can.
    """

    def __init__(self, folder: Path, inbox: queue.SimpleQueue[Any]) -> None:
        """Start listening."""
        self._folder = folder
        self._inbox = inbox
        self._place: Path | None = None
        self._clients: set[Client] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self.failure = ""
        self._listener = self._listen()
        self._thread = threading.Thread(target=self._serve, name="control socket", daemon=True)
        if self._listener is not None:
            self._thread.start()
        else:
            self._close_selector()

    def __enter__(self) -> ControlSocket:
        """Nothing more to do."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close."""
        self.close()

    @property
    def is_watched(self) -> bool:
        """Somebody wants samples."""
        return any(client.watches for client in tuple(self._clients))

    def show(self, sample: dict[str, Any]) -> None:
        """Send a sample to all who watch and keep up."""
        for client in tuple(self._clients):
            if client.watches:
                client.send({"sample": sample}, droppable=True)

    def close(self) -> None:
        """Hang up on all and remove the socket."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        with contextlib.suppress(OSError):
            self._wake.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(1)
        listener.close()
        for client in tuple(self._clients):
            client.close()
        self._remove_old()

    def _listen(self) -> socket.socket | None:
        self._remove_old()
        inside = self._folder / SOCKET
        try:
            return self._bound(inside)
        except OSError as error:
            self.failure = error.strerror or str(error)
        # Not every file system has sockets: NFS, FUSE, Windows' drives under WSL.
        try:
            # One name a process: two runs of it may listen at once.
            place = short_folder() / f"{os.getpid()}-{id(self):x}.sock"
            place.unlink(missing_ok=True)
            listener = self._bound(place)
            write_file(self._folder / POINTER, f"{place}\n")
        except (OSError, PorosStorageError):
            return None
        self.failure = ""
        return listener

    def _bound(self, place: Path) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with connect_path(place) as path:
                listener.bind(path)
            # Before it listens nobody can connect, so nobody can before this.
            place.chmod(0o600)
            listener.listen(8)
            listener.setblocking(False)
        except OSError:
            listener.close()
            raise
        self._place = place
        return listener

    def _remove_old(self) -> None:
        """What an engine left here that was killed, or this one itself."""
        for path in (find_socket(self._folder), self._folder / SOCKET, self._folder / POINTER):
            with contextlib.suppress(OSError):
                if path is not None and (path.is_socket() or path.name == POINTER):
                    path.unlink()

    def _serve(self) -> None:
        listener = self._listener
        assert listener is not None
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        while self._listener is not None:
            waits_to_send = any(client.has_pending for client in self._clients)
            for key, _ in self._selector.select(0.1 if waits_to_send else None):
                if key.fileobj is listener:
                    self._accept(listener)
                elif isinstance(key.data, Client):
                    self._receive(key.data)
            for client in tuple(self._clients):
                if client.has_pending:
                    client.flush()
        self._close_selector()

    def _close_selector(self) -> None:
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # too many files are open: it will be asked again at once
            time.sleep(0.1)
            return
        if len(self._clients) >= _MOST_CLIENTS:
            connection.close()
            return
        client = Client(connection)
        self._clients.add(client)
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _receive(self, client: Client) -> None:
        try:
            piece = client.connection.recv(_LONGEST_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._drop(client)
            return
        *lines, client.received = (client.received + piece).split(b"\n")
        for line in lines:
            self._take(client, line)
        if len(client.received) > _LONGEST_LINE_BYTES:
            client.send({"taken": False, "detail": "the line is too long"})
            self._drop(client)

    def _take(self, client: Client, line: bytes) -> None:
        try:
            command = json.loads(line)["command"]
        except (ValueError, KeyError, TypeError, RecursionError):
            command = None
        if command in COMMANDS:
            self._inbox.put(Order(command, client))
            return
        known = ", ".join(COMMANDS)
        client.send({"taken": False, "detail": f'no such order; {{"command": ...}}: {known}'})

    def _drop(self, client: Client) -> None:
        self._clients.discard(client)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        client.close()
