"""The runs of this machine, read by a thread of its own; each again only if it changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from poros import run_folder, runs, starting_runs
from poros.run_registry import Known
from poros.run_story import Story
from poros.runs import GOING_ON, GONE, KILLED, Run, look_at

FAILED, FINISHED, STOPPED = "failed", "finished", "stopped"
UNFINISHED = (STOPPED, FAILED, KILLED)
"""It ended before its last step."""
_Key = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Listed:
    """A run in the list.

    Attributes:
        run: As `poros runs` knows it.
        checkpoint_step: Of its newest checkpoint; None: it has none.
    """

    run: Run
    checkpoint_step: int | None = None

    @property
    def name(self) -> str:
        """Its folder's name."""
        return self.run.path.name or str(self.run.path)

    @property
    def model(self) -> str:
        """The model's short name."""
        name = str(self.run.story.model or self.run.identity.get("model") or "")
        return name.rstrip("/").rpartition("/")[2]

    @property
    def is_going(self) -> bool:
        """Its process is there."""
        return self.run.state in GOING_ON

    @property
    def can_resume(self) -> bool:
        """It ended before its last step and has a checkpoint to go on from."""
        return self.run.state in UNFINISHED and self.checkpoint_step is not None


class RunList:
    """Reads in a daemon thread, at once and whenever `refresh` is called; `latest` never waits."""

    def __init__(self, places: Sequence[Path] = (), look: Callable[[Known], Run] = look_at) -> None:
        """Nothing is read until `refresh`.

        Args:
            places: Folders to look in, beside the runs that are remembered.
            look: Reads one run.
        """
        self.latest: tuple[Listed, ...] = ()
        self.was_read = False
        self.version = 0
        self._places, self._look = tuple(places), look
        self._read: dict[Path, tuple[_Key, Listed]] = {}
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Look again soon; returns at once."""
        self._asked.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="run list", daemon=True)
            self._thread.start()

    def read_now(self) -> None:
        """Look in this thread; for a worker, or a test."""
        found = [self._listed(known) for known in runs.known_runs(self._places)]
        order = sorted(found, key=lambda one: one.run.story.last_s, reverse=True)
        # A run that goes on stands above all that ended.
        latest = tuple(sorted(order, key=lambda one: not one.is_going))
        if latest != self.latest or not self.was_read:
            self.latest, self.version = latest, self.version + 1
        self.was_read = True

    def going_now(self) -> list[Path]:
        """Folders that a process has at this moment, or is about to; for a worker: reads files."""
        return runs.going_on(self._places)

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self.read_now()

    def _listed(self, known: Known) -> Listed:
        key = _key(known)
        kept = self._read.get(known.path)
        if kept is None or kept[0] != key:
            try:
                run = self._look(known)
            except OSError:  # it goes while it is looked at, or its disk fails: no end of the list
                return Listed(Run(known, GONE, Story(), {}))
            kept = (key, Listed(run, None if run.state == GONE else newest_checkpoint(run.path)))
            self._read[known.path] = kept
        return kept[1]


def newest_checkpoint(folder: Path) -> int | None:
    """The step of a run's newest checkpoint; None: there is none."""
    steps = []
    try:
        for path in (folder / "checkpoints").iterdir():
            number = path.name.removeprefix("step-")
            if number.isdecimal():
                steps.append(int(number))
    except OSError:
        return None
    return max(steps, default=None)


def _key(known: Known) -> _Key:
    """What changes whenever the run has something new to tell."""
    if known.gone:
        return known.run_id, "gone", -1, -1
    held = run_folder.is_held(known.path)
    process = "held" if held else "starting" if starting_runs.starting_in(known.path) else ""
    try:
        found = (known.path / "events.jsonl").stat()
        return known.run_id, process, found.st_size, found.st_mtime_ns
    except OSError:
        return known.run_id, process, -1, -1
