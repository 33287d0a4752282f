"""sha256 of large files, computed once: remembered by path, size, mtime and inode."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from poros import atomic
from poros.errors import PorosStorageError
from poros.user_cache import user_cache

_MEMO_FILE = "file_hashes.json"
_SETTLED_S = 2.0  # a file that young may change again within one tick of the clock
_MOST_THREADS = 8
_HUB_BLOB = re.compile(r"[0-9a-f]{64}")


def file_hashes(paths: Iterable[Path], *, trust_names: bool = True) -> dict[Path, str]:
    """The files' sha256 in hex.

    Args:
        paths: What to hash.
        trust_names: Take the name of a Hub blob, which is its sha256, for its hash.
    """
    memo_path = user_cache() / _MEMO_FILE
    memo = _read_memo(memo_path)
    known: dict[Path, str] = {}
    unknown: list[Path] = []
    for path in paths:
        found = (_blob_name(path) if trust_names else None) or memo.get(_memo_key(path))
        if found:
            known[path] = found
        else:
            unknown.append(path)
    known |= hash_files(unknown)
    fresh = {
        _memo_key(path): known[path]
        for path in unknown
        if time.time() - path.stat().st_mtime > _SETTLED_S
    }
    if fresh:
        _write_memo(memo_path, memo | fresh)
    return known


def hash_files(paths: Iterable[Path]) -> dict[Path, str]:
    """The files' sha256, read anew, some at a time: hashing leaves the interpreter's lock."""
    left = list(paths)[::-1]
    hashes: dict[Path, str] = {}
    failures: list[Exception] = []

    def work() -> None:
        while not failures:
            try:
                path = left.pop()
            except IndexError:
                return
            try:
                hashes[path] = atomic.sha256_of(path)
            except Exception as error:  # noqa: BLE001  whoever waits raises it
                failures.append(error)

    # Daemons, and no executor: the interpreter would wait at its end until all is hashed.
    num_threads = min(_MOST_THREADS, os.cpu_count() or 1, len(left))
    threads = [threading.Thread(target=work, daemon=True) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return hashes


def stamp(path: Path) -> list[int]:
    """What changes when a file does: size, modification time, inode."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def is_blob(real: Path) -> bool:
    """Whether a path, with links followed, is a blob of the Hub's cache named by its sha256."""
    return real.parent.name == "blobs" and _HUB_BLOB.fullmatch(real.name) is not None


def _blob_name(path: Path) -> str | None:
    real = path.resolve()
    return real.name if is_blob(real) else None


def _memo_key(path: Path) -> str:
    return json.dumps([os.fspath(path.resolve()), *stamp(path)])


def _read_memo(path: Path) -> dict[str, str]:
    try:
        memo = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return memo if isinstance(memo, dict) else {}


def _write_memo(path: Path, memo: dict[str, str]) -> None:
    # Without it the next start hashes again: slower, never wrong.
    with contextlib.suppress(OSError, PorosStorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(path, json.dumps(memo, indent=0))
