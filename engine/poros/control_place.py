"""Where a run's socket lies: in its folder, or in a short folder that the run's folder names.

The kernel takes at most 107 bytes of a socket's path, and not every file system has sockets.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOCKET = "control.sock"
POINTER = "control.path"
"""A text file with the socket's real path, where it can't lie in the run's folder."""

_LONGEST_BYTES = 107


def find_socket(folder: Path) -> Path | None:
    """The socket of a run, or what is left of one; None: there is none."""
    inside = folder / SOCKET
    if inside.exists():
        return inside
    try:
        named = Path((folder / POINTER).read_text("utf-8").strip())
    except (OSError, ValueError):
        return None
    # Only where our own engines put one: a folder that was copied may name anything.
    return named if named.parent.name == _short_name() and named.exists() else None


def short_folder() -> Path:
    """A folder of this user's own for sockets, made if it is not there.

    Raises:
        OSError: It can't be made, or is not this user's alone.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = Path(runtime or tempfile.gettempdir()) / _short_name()
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not this user's alone")
    return path


@contextlib.contextmanager
def connect_path(place: Path) -> Iterator[str]:
    """A text by which the kernel finds the socket, however long its path is."""
    absolute = str(place.absolute())
    if len(os.fsencode(absolute)) <= _LONGEST_BYTES:
        yield absolute
        return
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)


def _short_name() -> str:
    return f"poros-{os.getuid()}"
