"""The runs of this machine: found, summed up, compared and removed; torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros import atomic, run_folder, run_registry, starting_runs
from poros.control_place import POINTER, SOCKET
from poros.errors import PorosConfigError, PorosError, PorosOutputError, escape_control
from poros.event_log import APART
from poros.home_paths import typed_path
from poros.run_registry import Known
from poros.run_story import Story, read_story

GONE = "gone"
RUNNING = "running"
STARTING = "starting"
"""Its process is there, but has no run folder yet."""
GOING_ON = (STARTING, RUNNING)
KILLED = "killed"
"""It ended without a word: SIGKILL, or the machine went down."""

_OURS = (
    "run.json", "config.yaml", "events.jsonl", "lock", "logs", "checkpoints", "adapter",
    "memory_map.json", APART, SOCKET, POINTER, "report.html", "report.md",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run folder and its story.

    Attributes:
        known: Where it is.
        state: ``starting``, ``running``, ``finished``, ``stopped``, ``failed``, ``killed`` or
            ``gone``.
        story: Empty for one that is gone, or starts for the first time.
        identity: Model and data, as `run.json` has them.
        exact: False once it was continued under changed conditions.
        num_bytes: On disk.
    """

    known: Known
    state: str
    story: Story
    identity: Mapping[str, Any]
    exact: bool = True
    num_bytes: int = 0

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.known.path


def list_runs(places: Iterable[Path] = ()) -> list[Run]:
    """All runs that are remembered or lie in given folders, the latest first."""
    runs = map(look_at, known_runs(places))
    return sorted(runs, key=lambda run: run.story.last_s, reverse=True)


def known_runs(places: Iterable[Path] = ()) -> list[Known]:
    """As the registry knows them, and those that are starting for the first time (no number)."""
    known = run_registry.known_runs(places)
    starting = {run.path: Known("", run.path) for run in starting_runs.starting_runs()}
    there = {run.path.resolve() for run in known if not run.gone}
    new = [run for path, run in starting.items() if path.resolve() not in there]
    # Of what lay in its folder before, nothing is to be told any more.
    return [run for run in known if not (run.gone and run.path in starting)] + new


def going_on(places: Iterable[Path] = ()) -> list[Path]:
    """Folders of the runs whose processes are there at this moment, starting ones included."""
    paths = [run.path for run in known_runs(places) if not run.gone]
    return [path for path in paths if state_of(path, Story()) in GOING_ON]


def state_of(path: Path, story: Story) -> str:
    """What becomes of a run, or became of it."""
    if run_folder.is_held(path):
        return RUNNING
    return STARTING if starting_runs.starting_in(path) else story.ending or KILLED


def look_at(known: Known) -> Run:
    """Read a run's folder."""
    record = None if known.gone else run_folder.read_run(known.path)
    if record is None:
        is_new = not known.gone and starting_runs.starting_in(known.path) is not None
        return Run(known, STARTING if is_new else GONE, Story(), {})
    story = read_story(known.path / "events.jsonl")
    identity = record.get("identity")
    return Run(
        known,
        state_of(known.path, story),
        story,
        identity if isinstance(identity, dict) else {},
        record.get("exact") is not False,
        atomic.size_of(known.path),
    )


def find_run(name: str) -> Known:
    """A run by its folder, or by the beginning of its number.

    Raises:
        PorosConfigError: None, or several.
    """
    path = typed_path(name).absolute()
    record = run_folder.read_run(path)
    if record is not None:
        return Known(str(record.get("run_id")), path)
    known = known_runs()
    there = [run for run in known if run.path == path]
    matches = there or [run for run in known if len(name) >= 4 and run.run_id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    what = f"{len(matches)} runs begin with" if matches else "no run folder, and no run is named"
    raise PorosConfigError(
        f"{what} {escape_control(name)}", remediation="poros runs list names them"
    )


def settings_of(run: Run) -> dict[str, Any]:
    """The config that a run was started with; empty where it can't be read."""
    from poros.config_yaml import read_document

    try:
        return dict(read_document(run.path / "config.yaml").values)
    except PorosError:
        return {}


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """What differs between runs: settings, results, and how far their losses are the same.

    Raises:
        PorosConfigError: One of them is gone.
    """
    for run in runs:
        if run.state == GONE:
            raise gone_error(run.path)
    settings = [settings_of(run) for run in runs]
    keys = dict.fromkeys(key for values in settings for key in values)
    return {
        "runs": [str(run.path) for run in runs],
        "settings": {
            key: [values.get(key) for values in settings]
            for key in keys
            if any(values.get(key) != settings[0].get(key) for values in settings)
        },
        "results": {
            name: [values[name] for values in map(results, runs)] for name in results(runs[0])
        },
        "same_losses_until_step": same_until([run.story.losses for run in runs]),
    }


def results(run: Run) -> dict[str, Any]:
    """What came out of a run, by name."""
    story = run.story
    return {
        "state": run.state,
        "steps": story.step,
        "loss": story.final_loss,
        "eval_loss": story.eval_loss,
        "tokens": story.num_tokens,
        "train_s": round(story.train_s, 3),
        "tokens_per_s": story.tokens_per_s and round(story.tokens_per_s, 1),
        "copy_wait_s": round(story.copy_wait_s, 3),
        "device_peak_bytes": story.peak_bytes,
        "host_peak_bytes": story.host_peak_bytes,
        "exact": run.exact,
    }


def same_until(losses: Sequence[Mapping[int, float | None]]) -> int:
    """The last step up to which all runs had the very same losses; 0: none."""
    last = 0
    for step in sorted(set.intersection(*(set(run) for run in losses))):
        if len({run[step] for run in losses}) > 1:
            break
        last = step
    return last


def refuse_running(run: Run) -> None:
    """Refuse a run at work before anybody is asked about it.

    Raises:
        PorosOutputError: It is.
    """
    if run.state == STARTING:
        starting = starting_runs.starting_in(run.path)
        pid = starting.pid if starting else "unknown"
        raise PorosOutputError(
            f"the run is starting (pid {pid})",
            where=escape_control(str(run.path)),
            remediation="let it begin, or stop it first: Ctrl-C where it was started",
        )
    if run.state == RUNNING:
        holder = run_folder.read_holder(run.path)
        pid, host, started = (holder.get(key, "unknown") for key in ("pid", "host", "started"))
        raise PorosOutputError(
            f"the run is at work (pid {pid} on {host}, since {started})",
            where=escape_control(str(run.path)),
            remediation="let it end, or stop it first: Ctrl-C where it runs, or"
            f" kill -INT {pid if isinstance(pid, int) else 'PID'}; both save a checkpoint",
        )


def remove_run(run: Run) -> list[str]:
    """Remove a run's files and forget it; files that are not a run's stay, and are named.

    Raises:
        PorosOutputError: It is running, or its files can't be removed.
    """
    if run.state == GONE:
        run_registry.forget(run.known.run_id)
        return []
    refuse_running(run)
    _refuse_protected(run.path)
    with run_folder.holding(run.path):
        # run.json goes last: until then the folder can be found and removed again.
        for name in sorted(_OURS, key=lambda name: name == "run.json"):
            atomic.remove(run.path / name)
        atomic.sweep_temps(run.path, owned=True)
    left = _names_in(run.path)
    if kept := [name for name in left if name in _OURS]:
        raise _not_removed(run.path, f"{', '.join(kept)} can't be removed")
    if not left:
        _remove_empty(run.path)
    run_registry.forget(run.known.run_id)
    return left


def _names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing where another one has removed it meanwhile."""
    try:
        return sorted(inner.name for inner in folder.iterdir())
    except FileNotFoundError:
        return []


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:  # as above
        return
    except OSError as error:
        raise _not_removed(folder, f"it can't be removed: {error.strerror}") from error


def _refuse_protected(folder: Path) -> None:
    """Refuse before the first file goes: a folder that can't be changed keeps its entries."""
    for path in (folder, *(inner for inner in folder.rglob("*") if inner.is_dir())):
        if not path.is_symlink() and not os.access(path, os.W_OK | os.X_OK):
            raise _not_removed(path, "the folder can't be changed")


def _not_removed(path: Path, what: str) -> PorosOutputError:
    return PorosOutputError(
        what,
        where=escape_control(str(path)),
        remediation="mend its rights (chmod u+rwx) and run again",
    )


def gone_error(path: Path) -> PorosConfigError:
    """What to say of a run whose folder is not there any more."""
    return PorosConfigError(
        "the run's folder was moved or deleted",
        where=escape_control(str(path)),
        remediation="give its new folder, or `poros runs rm` forgets it",
    )
