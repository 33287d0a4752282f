"""A run on disk: the folder `output_dir`, held by one process at a time.

- `config.yaml`, the resolved config; `run.json`, which run this is;
- `events.jsonl`, what happened; `logs/`, text for people; `lock`, who holds the folder;
- `memory_map.json`, what lay in memory at the peak, where that was asked for;
- `checkpoints/step-000010/`, each complete or absent; `adapter/`, the result.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poros import atomic
from poros.control_place import POINTER, SOCKET
from poros.errors import PorosOutputError, PorosResumeError, escape_control
from poros.home_paths import typed_path
from poros.os_errors import refused

FORMAT = 1

# What a start that ended early, or the app before the engine, may leave in a folder.
_HARMLESS = ("lock", "logs", SOCKET, POINTER)

_held_here: dict[Path, dict[str, Any]] = {}
# POSIX locks belong to a process, so a second holder in this one must be found by hand.


@dataclass
class RunFolder:
    """An open, locked run folder."""

    path: Path
    run_id: str
    exact: bool = True
    """False for ever once the run was continued under changed conditions."""
    is_new: bool = False
    """The folder was not there before."""
    was_empty: bool = False
    """Nothing lay in it before."""
    identity: Mapping[str, Any] = field(default_factory=dict)
    replaces: str = ""
    """The number of a run without results that lay here; it ends with this one's `record`."""
    _lock_descriptor: int = -1

    @property
    def events_path(self) -> Path:
        """The event file."""
        return self.path / "events.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of `step-000010` folders."""
        return self.path / "checkpoints"

    @property
    def adapter(self) -> Path:
        """The final adapter."""
        return self.path / "adapter"

    @property
    def logs(self) -> Path:
        """Text for people."""
        return self.path / "logs"

    @property
    def memory_map(self) -> Path:
        """What lay in memory at the peak, if the run was asked to write it down."""
        return self.path / "memory_map.json"

    def record(self, config_yaml: str) -> None:
        """Write `run.json` and `config.yaml`."""
        # run.json first: it is what makes the folder ours after a crash here.
        self._write_about()
        atomic.write_file(self.path / "config.yaml", config_yaml)
        self.checkpoints.mkdir(exist_ok=True)

    def _write_about(self) -> None:
        about = {
            "format": FORMAT,
            "run_id": self.run_id,
            "exact": self.exact,
            "identity": dict(self.identity),
        }
        atomic.write_file(self.path / "run.json", json.dumps(about, indent=1) + "\n")

    def discard(self) -> None:
        """Leave the place as it was, when a run could not even begin."""
        if _has_results(self.path):
            return
        if self.is_new:
            atomic.remove(self.path)
        elif self.was_empty:
            for inner in self.path.iterdir():
                atomic.remove(inner)

    def close(self) -> None:
        """Give the folder back."""
        if self._lock_descriptor >= 0:
            _held_here.pop(_key(self.path), None)
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1


@contextlib.contextmanager
def open_run_folder(
    path: Path, *, identity: Mapping[str, Any], resume: bool = True
) -> Iterator[RunFolder]:
    """Make or enter ``path``, lock it and prove that it can be written.

    Args:
        path: Its parent must exist.
        identity: What makes two runs different runs (model, data, adapter); plain JSON values.
        resume: False refuses a folder that has checkpoints.

    Raises:
        PorosOutputError: Locked, unwritable, or the folder of another run.
    """
    try:
        refuse_bad_place(path)
        folder = RunFolder(path, secrets.token_hex(8), identity=identity, is_new=not path.exists())
        path.mkdir(exist_ok=True)
        folder.was_empty = not any(path.iterdir())
        folder._lock_descriptor = _lock(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        try:
            record = _refuse_other_run(path, identity, resume=resume)
            if record and _has_results(path):
                folder.run_id, folder.exact = record["run_id"], record["exact"]
            else:
                folder.replaces = str(record.get("run_id", ""))
            _prove_writable(folder)
        except BaseException:
            folder.discard()
            raise
        yield folder
    finally:
        folder.close()


def look_at_place(path: Path, *, identity: Mapping[str, Any], resume: bool = True) -> str:
    """What a start would find in ``path``, in words; nothing is written.

    Args:
        path: As `open_run_folder` takes it, like the rest.
        identity: What makes two runs different runs.
        resume: False refuses a folder that has checkpoints.

    Raises:
        PorosOutputError: Locked, unwritable, or the folder of another run.
    """
    refuse_bad_place(path)
    record = _refuse_other_run(path, identity, resume=resume)
    if is_held(path):
        raise _locked(path, read_holder(path))
    if not path.exists():
        return "a new folder"
    if not record or not _has_results(path):
        return "a folder with no run in it yet"
    steps = sorted(inner.name for inner in (path / "checkpoints").glob("step-*"))
    return f"a run that goes on from {steps[-1]}" if steps else "a run that has its adapter"


def free_name(path: Path) -> Path:
    """The first of ``path-2``, ``path-3``... that is not there."""
    if not path.name:  # `.`, or the root
        path = path.absolute() if path.absolute().name else path / "run"
    number = 2
    while (candidate := path.with_name(_shortened(path.name, f"-{number}"))).exists():
        number += 1
    return candidate


def read_run(path: Path) -> dict[str, Any] | None:
    """The content of a folder's `run.json`; None when it is no run folder."""
    try:
        record = json.loads((path / "run.json").read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def read_holder(path: Path) -> dict[str, Any]:
    """Who holds, or last held, the folder: pid, host and start time, as far as known.

    Never called by the holder itself: closing any descriptor of the file would drop its lock.
    """
    try:
        holder = json.loads((path / "lock").read_text())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Have a folder for oneself, as a run would, without beginning one.

    Raises:
        PorosOutputError: A run has it, or it can't be written.
    """
    try:
        descriptor = _lock(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield
    finally:
        _held_here.pop(_key(path), None)
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process has the folder now; asks the kernel, and takes no lock to find out."""
    return _key(path) in _held_here or _holding_pid(path) is not None


def holder_pid(path: Path) -> int | None:
    """Which process of this machine has the folder now; None: none, or it can't be told."""
    if _key(path) in _held_here:
        return os.getpid()
    pid, holder = _holding_pid(path), read_holder(path)
    # The kernel's number counts only where the holder saw itself under the same one.
    named = holder.get("pid") == pid and holder.get("host") == socket.gethostname()
    return pid if named else None


def _holding_pid(path: Path) -> int | None:
    """The kernel's answer; 0 or less: a process that can't be seen from here."""
    # struct flock: type, whence, start, length, pid.
    question = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with (path / "lock").open("rb") as file:
            answer = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, question))
    except OSError:
        return None
    return None if answer[0] == fcntl.F_UNLCK else int(answer[4])


def refuse_bad_place(path: Path) -> None:
    """What can be told before a start, whatever the run: where no run's folder can be.

    Raises:
        PorosOutputError: No parent, a file, a folder of something else, or not to be written.
    """
    if not path.parent.is_dir():
        raise PorosOutputError(
            "the output folder's parent is missing",
            where=escape_control(str(path)),
            remediation=f"make it first: mkdir -p {escape_control(str(path.parent))}",
        )
    if path.exists() and not path.is_dir():
        raise _taken(path, "the output folder's name belongs to a file")
    if path.is_dir() and read_run(path) is None and (foreign := _foreign_names(path)):
        raise _taken(path, f"the folder has files that are no run's ({', '.join(foreign)})")
    if not os.access(path if path.is_dir() else path.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def refuse_missing_checkpoint(setting: str) -> None:
    """The same of ``resume: auto|never|PATH``: a checkpoint that is named has to be there.

    Raises:
        PorosResumeError: It is not.
    """
    if setting not in ("auto", "never") and not typed_path(setting).is_dir():
        raise PorosResumeError(
            "no such checkpoint",
            where=escape_control(setting),
            remediation="name a folder like checkpoints/step-000010 of a run, or --resume auto",
        )


def _refuse_other_run(path: Path, identity: Mapping[str, Any], *, resume: bool) -> dict[str, Any]:
    """The folder's `run.json`, empty for a fresh folder."""
    record = read_run(path)
    if record is not None:
        reason = _reason_to_refuse(path, record, identity, resume=resume)
        if reason:
            raise _taken(path, reason)
    return record or {}


def _reason_to_refuse(
    path: Path, record: dict[str, Any], identity: Mapping[str, Any], *, resume: bool
) -> str:
    if record.get("format") != FORMAT:
        return f"the run there has format {record.get('format')}, this version writes {FORMAT}"
    if not _has_results(path):
        return ""
    theirs = record.get("identity", {})
    changed = [key for key in {**theirs, **identity} if theirs.get(key) != identity.get(key)]
    if changed:
        return f"the folder belongs to another run (other {', '.join(sorted(changed))})"
    return "" if resume else "the folder has checkpoints, and resume is never"


def _has_results(path: Path) -> bool:
    """Whether there is anything to lose."""
    return (path / "adapter").exists() or any((path / "checkpoints").glob("step-*"))


def _foreign_names(path: Path) -> list[str]:
    try:
        names = sorted(inner.name for inner in path.iterdir())
    except OSError as error:
        raise _unwritable(path, error) from error
    ours = (atomic.TEMP_PREFIX, *_HARMLESS)
    return [escape_control(name) for name in names if not name.startswith(ours)][:3]


def _lock(path: Path) -> int:
    key = _key(path)
    if key in _held_here:
        raise _locked(path, _held_here[key])
    started = time.strftime("%Y-%m-%d %H:%M:%S %z")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        # lockf and not flock: a forked data worker would inherit a flock and keep it for ever.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, (json.dumps(holder) + "\n").encode(), 0)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError | PermissionError):
            raise _locked(path, read_holder(path)) from error
        raise
    _held_here[key] = holder
    return descriptor


def _key(path: Path) -> Path:
    return path.resolve()


def _locked(path: Path, holder: Mapping[str, Any]) -> PorosOutputError:
    pid, host, started = (holder.get(key, "unknown") for key in ("pid", "host", "started"))
    return PorosOutputError(
        f"another run holds the output folder (pid {pid} on {host}, since {started})",
        where=escape_control(str(path)),
        remediation="wait for it or stop it,"
        f" or set output_dir to {escape_control(str(free_name(path)))}",
    )


def _prove_writable(folder: RunFolder) -> None:
    try:
        atomic.sweep_temps(folder.path, owned=True)
        folder.logs.mkdir(exist_ok=True)
        atomic.sweep_temps(folder.checkpoints, owned=True)
        _probe(folder.path / f"{atomic.TEMP_PREFIX}{os.getpid()}-probe")
    except OSError as error:
        raise _unwritable(folder.path, error) from error


def _probe(temp: Path) -> None:
    """A real write, fsync and rename: as root, permissions prove nothing."""
    with temp.open("wb") as file:
        file.write(b"\0" * 4096)
        file.flush()
        os.fsync(file.fileno())
    temp.rename(temp.with_name(f"{temp.name}-renamed")).unlink()


def _taken(path: Path, reason: str) -> PorosOutputError:
    return PorosOutputError(
        reason,
        where=escape_control(str(path)),
        remediation=f"set output_dir to {escape_control(str(free_name(path)))}, which is free",
    )


def _unwritable(path: Path, error: OSError) -> PorosOutputError:
    return refused(
        PorosOutputError,
        "the output folder can't be written",
        error,
        where=path,
        remediation="choose another output_dir, or mend its mount and rights",
    )


def _shortened(name: str, ending: str) -> str:
    room = 255 - len(ending.encode())
    return os.fsdecode(os.fsencode(name)[:room]) + ending
