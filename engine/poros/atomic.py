"""Files and folders that appear whole or not at all, after a crash or a power cut too.

[Note: order of writes] every file is fsynced, then the manifest, then each folder inside, then
the temporary name becomes the final one, then the parent folder is fsynced. A rename may reach the
disk before the data it names, hence the fsyncs before it. A failed fsync is never tried again: the
kernel drops the pages it could not write and calls the second try a success.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from poros import failpoints
from poros.errors import PorosError, PorosOutputError, PorosStorageError

TEMP_PREFIX = ".tmp-"
"""What every temporary name starts with; the writer's process id follows."""

_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ESTALE)

IfExists = Literal["error", "replace", "keep"]


@contextlib.contextmanager
def atomic_dir(
    final: Path,
    *,
    manifest: str | None = None,
    about: Mapping[str, Any] | None = None,
    needed_bytes: int = 0,
    if_exists: IfExists = "error",
) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes ``final`` when the body ends without an error.

    Args:
        final: The name it gets. Its parent must exist.
        manifest: Write this file (a relative path) last: ``about``'s keys and ``files``, which has
            size and sha256 of every other file.
        about: Read at the end, so the body may still fill it.
        needed_bytes: What the body is going to write, for the message when the disk is full.
        if_exists: ``replace`` what is there, ``keep`` it and drop the new one, or fail.

    Raises:
        PorosStorageError: The disk is full or failed; the temporary folder is removed.
    """
    temp = _temp_beside(final)
    with _storage_errors(final, temp, needed_bytes):
        temp.mkdir()
        failpoints.hit("atomic.begin")
        yield temp
        failpoints.hit("atomic.written")
        files = [path for path in sorted(temp.rglob("*")) if path.is_file()]
        for path in files:
            fsync(path)
        if manifest is not None:
            _write_manifest(temp, manifest, dict(about or {}))
        _fsync_folders(temp)
        _put_in_place(temp, final, if_exists)


@contextlib.contextmanager
def atomic_file(final: Path, *, needed_bytes: int = 0) -> Iterator[Path]:
    """Yield a path to write; it becomes ``final``, in place of what was there.

    Raises:
        PorosStorageError: The disk is full or failed; the temporary file is removed.
    """
    temp = _temp_beside(final)
    with _storage_errors(final, temp, needed_bytes):
        failpoints.hit("atomic.begin")
        yield temp
        failpoints.hit("atomic.written")
        fsync(temp)
        failpoints.hit("atomic.rename")
        temp.replace(final)
        failpoints.hit("atomic.parent_fsync")
        fsync_folder(final.parent)


def write_file(final: Path, content: str | bytes) -> None:
    """Write a whole file atomically."""
    data = content.encode() if isinstance(content, str) else content
    with atomic_file(final, needed_bytes=len(data)) as temp:
        temp.write_bytes(data)


def sweep_temps(folder: Path, *, owned: bool = False) -> list[Path]:
    """Remove what killed writers left in ``folder``.

    Args:
        folder: Only names directly in it are looked at.
        owned: Nobody else may be writing here (we hold its lock), so every temporary goes;
            otherwise those of living processes stay.
    """
    swept = []
    for path in sorted(folder.glob(f"{TEMP_PREFIX}*")) if folder.is_dir() else []:
        if owned or not _is_alive(path.name.removeprefix(TEMP_PREFIX).partition("-")[0]):
            remove(path)
            swept.append(path)
    return swept


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; what is not there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def remove_dir(folder: Path) -> None:
    """Remove a finished folder; a crash half way leaves a temporary name, never half a folder."""
    temp = _temp_beside(folder)
    folder.rename(temp)
    remove(temp)


def fsync(path: Path) -> None:
    """Bring one file's bytes to the disk."""
    failpoints.hit("atomic.file_fsync")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Bring a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE filesystems have no fsync for folders, and no need of it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The file's sha256 in hex, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; what goes meanwhile counts as nothing."""
    if not os.path.isdir(path):  # noqa: PTH112  Path raises where it may not look
        return _size_of_file(path)
    # Not `rglob`, which raises for a folder that goes while it walks: a run's checkpoints do.
    return sum(
        _size_of_file(Path(folder, name)) for folder, _, names in os.walk(path) for name in names
    )


def _size_of_file(path: Path) -> int:
    try:
        return path.lstat().st_size if path.exists() else 0
    except OSError:
        return 0


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write on the folder's filesystem; 0: can't be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0


def storage_error(error: BaseException, final: Path, *, needed_bytes: int = 0) -> PorosError | None:
    """The error to show for a failed write; None when ``error`` is none.

    safetensors reports the system's errors as text ("os error 28"), so the text is looked at too.
    """
    number = _errno_of_failed_write(error, final.parent)
    if number is None:
        return None
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PorosOutputError(
            f"can't be written: {os.strerror(number)}",
            where=str(final),
            remediation="mend its mount and rights, or choose another folder",
        )
    free = free_bytes(final.parent)
    amount = (
        f"needed {needed_bytes} bytes, free {free} bytes" if needed_bytes else f"free {free} bytes"
    )
    full = number in (errno.ENOSPC, errno.EDQUOT)
    return PorosStorageError(
        f"{'disk full' if full else 'write failed'}: {os.strerror(number)} ({amount})",
        where=str(final),
        remediation="free some space, or choose another folder"
        if full
        else "check the disk and its mount, then run again",
    )


def _errno_of_failed_write(error: BaseException, folder: Path) -> int | None:
    if type(error).__name__ == "SafetensorError":
        found = re.search(r"\(os error (\d+)\)", str(error))
        return int(found[1]) if found else None
    if not isinstance(error, OSError):
        return None
    # Network errors are OSErrors too, and a body may download what it writes.
    about_us = str(error.filename or "").startswith(str(folder))
    return error.errno if error.errno in _DISK_ERRNOS or about_us else None


def _temp_beside(final: Path) -> Path:
    # Not built from final's name: that may already be as long as the filesystem allows.
    return final.parent / f"{TEMP_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def _storage_errors(final: Path, temp: Path, needed_bytes: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        written_bytes = size_of(temp)
        remove(temp)
        failure = storage_error(error, final, needed_bytes=max(needed_bytes, written_bytes))
        if failure is not None:
            raise failure from error
        raise


def _write_manifest(temp: Path, manifest: str, about: dict[str, Any]) -> None:
    failpoints.hit("atomic.manifest")
    path = temp / manifest
    files = {
        str(inner.relative_to(temp)): {
            "num_bytes": inner.stat().st_size,
            "sha256": sha256_of(inner),
        }
        for inner in sorted(temp.rglob("*"))
        if inner.is_file() and inner != path
    }
    path.write_text(json.dumps(about | {"files": files}, indent=1) + "\n")
    fsync(path)


def _fsync_folders(temp: Path) -> None:
    for folder in [*sorted(p for p in temp.rglob("*") if p.is_dir()), temp]:
        failpoints.hit("atomic.dir_fsync")
        fsync_folder(folder)


def _put_in_place(temp: Path, final: Path, if_exists: IfExists) -> None:
    failpoints.hit("atomic.rename")
    if final.exists() and if_exists == "keep":
        remove(temp)
        return
    if final.exists() and if_exists == "replace":
        remove_dir(final)
    temp.rename(final)
    failpoints.hit("atomic.parent_fsync")
    fsync_folder(final.parent)


def _is_alive(process_id: str) -> bool:
    if not process_id.isdigit():
        return False
    try:
        os.kill(int(process_id), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
