"""Which runs were started on this machine, and where: a small file for each run.

It only finds run folders again; what a run is stands in its folder. Losing it loses no run.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poros.atomic import write_file
from poros.errors import PorosStorageError
from poros.home_paths import typed_path
from poros.run_folder import read_run

_RUN_ID = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True, slots=True)
class Known:
    """A run that was started, or was found.

    Attributes:
        run_id: Its own number.
        path: Where it is, or was last seen.
        gone: No run of that number lies there: it was moved or deleted, or its place was taken.
        moved_from: Where it was started, if it was found elsewhere.
    """

    run_id: str
    path: Path
    gone: bool = False
    moved_from: Path | None = None


def registry_folder() -> Path:
    """The system's place for a program's state, which ``XDG_STATE_HOME`` moves."""
    import platformdirs

    return typed_path(platformdirs.user_state_path("poros", appauthor=False)) / "runs"


def keep(run_id: str, path: Path, *, instead_of: str = "") -> None:
    """Remember where a run writes; that the file can't be written stops nothing.

    ``instead_of`` is a run whose folder it took over: each new try in a folder would leave one that
    is gone in the list.
    """
    if instead_of and instead_of != run_id:
        forget(instead_of)
    record = {"run_id": run_id, "path": str(path.absolute()), "started_s": time.time()}
    with contextlib.suppress(OSError, PorosStorageError):
        place = _place(run_id)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_file(place, json.dumps(record) + "\n")


def forget(run_id: str) -> None:
    """Remove what is remembered of a run."""
    if _RUN_ID.fullmatch(run_id):
        with contextlib.suppress(OSError):
            _place(run_id).unlink(missing_ok=True)


def known_runs(places: Iterable[Path] = ()) -> list[Known]:
    """The runs that are remembered, and those in given folders, by path.

    Args:
        places: Run folders, or folders with run folders directly in them.
    """
    found = {str(record["run_id"]): path for path, record in _runs_in(places)}
    known = {}
    for run_id, path in _remembered():
        here = found.pop(run_id, None)
        if _holds(path, run_id):
            known[run_id] = Known(run_id, path)
        elif here is not None:
            known[run_id] = Known(run_id, here, moved_from=path)
        else:
            known[run_id] = Known(run_id, path, gone=True)
    known |= {run_id: Known(run_id, path) for run_id, path in found.items()}
    return sorted(known.values(), key=lambda run: str(run.path))


def _runs_in(places: Iterable[Path]) -> Iterator[tuple[Path, dict[str, object]]]:
    for place in places:
        folder = typed_path(place).absolute()
        try:
            inside = sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []
        except OSError:
            inside = []
        for path in (folder, *inside):
            record = read_run(path)
            if record is not None and _RUN_ID.fullmatch(str(record.get("run_id"))):
                yield path, record


def _remembered() -> Iterator[tuple[str, Path]]:
    """What the files say; a damaged one is as good as none."""
    folder = registry_folder()
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            record = json.loads(file.read_text("utf-8"))
            run_id, path = record["run_id"], record["path"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(run_id, str) and isinstance(path, str) and file.stem == run_id:
            yield run_id, typed_path(path)


def _holds(path: Path, run_id: str) -> bool:
    record = read_run(path)
    return record is not None and record.get("run_id") == run_id


def _place(run_id: str) -> Path:
    return registry_folder() / f"{run_id}.json"
