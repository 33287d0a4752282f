"""Which checkpoint a start goes on from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poros import atomic
from poros.errors import PorosResumeError
from poros.events import Event, Warned
from poros.home_paths import typed_path
from poros.run_folder import RunFolder, refuse_missing_checkpoint
from poros.run_story import Story, read_story
from poros.training.checkpoint import TrainerState, refused, verify

SET_ASIDE = "set-aside-"
"""Prefix of checkpoints that a resumed run passed over; they are never deleted by us."""

_NAME = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """A complete checkpoint and what it says of itself."""

    folder: Path
    state: TrainerState
    in_this_run: bool
    """It lies among this run's checkpoints, whose event file it belongs to."""


def checkpoint_name(step: int) -> str:
    """The folder's name; it sorts by step."""
    return f"step-{step:06d}"


def list_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """(step, folder) of all checkpoints, the newest first; by number, never by clock."""
    found = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return sorted(((int(m[1]), path) for m, path in found if m), reverse=True)


def find_resume_point(
    run: RunFolder, setting: str, emit: Callable[[Event], None]
) -> ResumePoint | None:
    """The checkpoint that ``resume: auto|never|PATH`` means; None: start at step 0.

    Args:
        run: Its checkpoints are looked at, not changed.
        setting: The config's word.
        emit: Takes a warning for each checkpoint that is skipped.

    Raises:
        PorosResumeError: The named checkpoint can't be used, or none of the run's can.
    """
    if setting == "never":
        return None
    return _newest(run, emit) if setting == "auto" else _named(run, typed_path(setting))


def _newest(run: RunFolder, emit: Callable[[Event], None]) -> ResumePoint | None:
    failures = []
    for _, path in list_checkpoints(run.checkpoints):
        try:
            return ResumePoint(path, _verified(run, path), in_this_run=True)
        except PorosResumeError as error:
            failures.append(error)
            emit(Warned(code="W-checkpoint-skipped", message=f"{error.message}, {error.where}"))
    if failures:
        raise failures[0]
    return None


def _named(run: RunFolder, path: Path) -> ResumePoint:
    refuse_missing_checkpoint(str(path))
    in_this_run = path.resolve().parent == run.checkpoints.resolve()
    if not in_this_run and list_checkpoints(run.checkpoints):
        raise refused(path, f"it is of another run than {run.path}, which has its own checkpoints")
    state = _verified(run, path) if in_this_run else verify(path.resolve())
    return ResumePoint(path, state, in_this_run)


def _verified(run: RunFolder, path: Path) -> TrainerState:
    if path.is_symlink():
        raise refused(path, "it is a link")
    state = verify(path)
    if state.run_id != run.run_id:
        raise refused(path, f"it is of another run ({state.run_id}, this one is {run.run_id})")
    if checkpoint_name(state.step) != path.name:
        raise refused(path, f"it is of step {state.step}")
    return state


def finished_before(run: RunFolder, point: ResumePoint | None, total_steps: int) -> Story | None:
    """The story of a run that came to its end, adapter and all; None: there is something to do."""
    if point is None or not point.in_this_run or point.state.step < total_steps:
        return None
    story = read_story(run.events_path)
    try:
        whole = story.ending == "finished" and verify(run.adapter).step == point.state.step
    except PorosResumeError:
        return None
    return story if whole else None


def set_aside_newer(run: RunFolder, point: ResumePoint) -> None:
    """Rename the checkpoints that the run passes over, damaged ones or ones it will make again."""
    for step, path in list_checkpoints(run.checkpoints):
        if step > point.state.step:
            target = path.with_name(f"{SET_ASIDE}{path.name}")
            atomic.remove(target)
            path.rename(target)


def oldest_to_remove(folder: Path, keep: int) -> Iterator[Path]:
    """Checkpoints beyond the newest ``keep``, the oldest first."""
    assert keep >= 2, keep
    yield from (path for _, path in reversed(list_checkpoints(folder)[keep:]))
