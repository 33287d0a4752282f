"""Runs whose process is there, but has no run folder yet: a small note for each.

A process reads libraries for seconds before it takes its folder. The note is written at its first
moment, by whoever starts it or by itself, and goes when the run has begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poros.atomic import write_file
from poros.errors import PorosOutputError, PorosStorageError, escape_control
from poros.home_paths import typed_path
from poros.run_folder import free_name
from poros.run_registry import registry_folder


@dataclass(frozen=True, slots=True, order=True)
class StartingRun:
    """A run that is about to begin; the older one is the lesser.

    Attributes:
        born: When its process began, as the kernel counts: clock ticks since the machine started.
        pid: Of the process.
        path: The run's folder, absolute; it may not be there yet.
    """

    born: int
    pid: int
    path: Path


@contextlib.contextmanager
def noted(path: Path) -> Iterator[None]:
    """Note that this process is about to run in ``path``, until the run began or ended."""
    note(path, os.getpid())
    try:
        yield
    finally:
        forget()


def note(path: Path, pid: int) -> None:
    """Note that a process is about to run in ``path``; that it can't be written stops nothing."""
    born = _born(pid)
    if born is None:
        return
    record = {"path": str(typed_path(path).absolute()), "born": born}
    with contextlib.suppress(OSError, PorosStorageError):
        place = _place(pid)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, json.dumps(record) + "\n")


def forget() -> None:
    """This process's run has begun, or won't."""
    _remove(_place(os.getpid()))


def starting_runs() -> list[StartingRun]:
    """Those of this machine whose process is there, the oldest first."""
    found = []
    begin = f"{socket.gethostname()}-"
    for place in _notes():
        # A home that several machines share has the notes of all of them.
        pid = place.stem.removeprefix(begin)
        if not place.name.startswith(begin) or not pid.isdecimal():
            continue
        try:
            record = json.loads(place.read_text("utf-8"))
            born, path = int(record["born"]), typed_path(str(record["path"]))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError):
            born, path = -1, Path()
        if born == _born(int(pid)):
            found.append(StartingRun(born, int(pid), path))
        else:  # its process was ended before it could take the note away
            _remove(place)
    return sorted(found)


def starting_in(path: Path) -> StartingRun | None:
    """The run that is about to begin in a folder."""
    found = starting_runs()
    here = typed_path(path).resolve() if found else path
    return next((run for run in found if run.path.resolve() == here), None)


def refuse_starting(path: Path) -> None:
    """Refuse a folder in which another process is about to run, before libraries are read.

    Raises:
        PorosOutputError: It began before this process. Of two that begin at once, one goes on.
    """
    first = starting_in(path)
    if first is not None and first.pid != os.getpid():
        raise PorosOutputError(
            f"another run is starting in the output folder (pid {first.pid})",
            where=escape_control(str(path)),
            remediation="wait for it or stop it,"
            f" or set output_dir to {escape_control(str(free_name(path)))}",
        )


def _notes() -> list[Path]:
    try:
        return [place for place in _folder().iterdir() if place.suffix == ".json"]
    except OSError:
        return []


def _folder() -> Path:
    return registry_folder().with_name("starting")


def _place(pid: int) -> Path:
    return _folder() / f"{socket.gethostname()}-{pid}.json"


def _remove(place: Path) -> None:
    with contextlib.suppress(OSError):
        place.unlink(missing_ok=True)


def _born(pid: int) -> int | None:
    """When a process began, which tells it from a later one of its number; None: it is not there.

    One that has ended and waits for its parent is not there.
    """
    try:
        # The second field is a name in brackets, which may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
