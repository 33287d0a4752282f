"""What earlier runs of a model, card and shape measured, kept for the next plan; torch-free.

A file for each key under the user's cache. It is only ever a better guess: one that can't be read,
or says nonsense, is as good as none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros.memory_plan import MemoryPlan
from poros.user_cache import user_cache

FOLDER = "plans"
VERSION = 1
MOST_RUNS = 16
_LARGEST = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run under a plan took.

    Attributes:
        plan: The run's.
        estimated_bytes: The peak that had been computed for it.
        peak_bytes: The peak that was seen.
        reserved_bytes: What the allocator had reserved.
        step_s: Of a usual step.
        whole: Whether every sample was seen, hence the longest one.
        ran_out: The plan did not fit; the peak is what it would have needed at the least.
    """

    plan: MemoryPlan
    estimated_bytes: int
    peak_bytes: int
    reserved_bytes: int
    step_s: float
    whole: bool
    ran_out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What runs under a key were of, for those who know no key.

    Attributes:
        model: As the run's config named it.
        card: As the driver names it.
        num_rows: Tokens of the longest micro-batch.
        rank: Of the adapter.
    """

    model: str
    card: str
    num_rows: int
    rank: int


def key_of(facts: Mapping[str, Any]) -> str:
    """The name under which runs of the same model, card and shape are kept."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def read_runs(key: str) -> list[Measured]:
    """The runs under a key, the latest last; none where the file is missing or damaged."""
    try:
        record = json.loads(_path(key).read_text(encoding="utf-8"))
        runs = record["runs"] if record["version"] == VERSION else []
        return [_measured(run) for run in runs[-MOST_RUNS:]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def runs_about(models: Collection[str], cards: Collection[str]) -> list[tuple[About, Measured]]:
    """What was measured of a model, under any of its names, on any of these cards.

    Plans that ran out are among it: see `Measured.ran_out`.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in sorted((user_cache() / FOLDER).glob("*.json")):
            about = _read_about(path)
            if about is not None and about.model in models and about.card in cards:
                found += [(about, run) for run in read_runs(path.stem)]
    return found


def keep_run(key: str, run: Measured, about: About | None = None) -> None:
    """Put a run beside the others of its key, in place of a former one of the same plan.

    That a cache can't be written stops nothing.
    """
    runs = [other for other in read_runs(key) if other.plan != run.plan][-MOST_RUNS + 1 :]
    record = {"version": VERSION, "runs": [dataclasses.asdict(r) for r in (*runs, run)]}
    if (about := about or _read_about(_path(key))) is not None:
        record["about"] = dataclasses.asdict(about)
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_text(json.dumps(record) + "\n", encoding="utf-8")
        unfinished.replace(path)


def corrected(plan: MemoryPlan, estimated_bytes: int, runs: Sequence[Measured]) -> int:
    """The peak of a plan as earlier runs would have it.

    The same plan has the peak that was seen. Another one is off by as much as the latest run with
    its head in the same place was; but a run that has not seen the longest sample never makes a
    peak smaller. What ran out is not forgotten for a smaller plan that did not: all others with the
    head there are off by at least as much.
    """
    off_bytes = short_bytes = 0
    for run in runs:
        if run.plan == plan:
            return run.peak_bytes if run.whole else max(run.peak_bytes, estimated_bytes)
        if run.plan.head_on_host == plan.head_on_host:
            difference = run.peak_bytes - run.estimated_bytes
            if run.ran_out:
                short_bytes = max(short_bytes, difference)
            else:
                off_bytes = difference if run.whole else max(difference, 0)
    if short_bytes:
        off_bytes = max(off_bytes, short_bytes)
    return max(estimated_bytes + off_bytes, 0)


def run_of(plan: MemoryPlan, runs: Sequence[Measured]) -> Measured | None:
    """The latest run of this very plan that had memory enough."""
    found = (run for run in reversed(runs) if run.plan == plan and not run.ran_out)
    return next(found, None)


def keep_shortage(key: str, shortage: Measured, about: About | None = None) -> None:
    """Put a plan that ran out beside the runs of its key, unless one of it had as high a peak."""
    known = [run for run in read_runs(key) if run.plan == shortage.plan]
    if all(run.peak_bytes < shortage.peak_bytes for run in known):
        keep_run(key, shortage, about)


def _read_about(path: Path) -> About | None:
    try:
        about = About(**json.loads(path.read_text(encoding="utf-8"))["about"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    kinds = (type(about.model), type(about.card), type(about.num_rows), type(about.rank))
    return about if kinds == (str, str, int, int) else None


def _path(key: str) -> Path:
    return user_cache() / FOLDER / f"{key}.json"


def _measured(record: dict[str, Any]) -> Measured:
    plan = MemoryPlan(**record["plan"] | {"resident": tuple(map(int, record["plan"]["resident"]))})
    run = Measured(**record | {"plan": plan})
    sizes = (run.estimated_bytes, run.peak_bytes, run.reserved_bytes)
    if not all(type(size) is int and 0 < size < _LARGEST for size in sizes):
        raise ValueError("no sizes of memory")
    if type(run.ran_out) is not bool:
        raise ValueError("no word of how it ended")
    timed = type(run.step_s) is float and 0 < run.step_s < _LARGEST
    if not timed and not run.ran_out:
        raise ValueError("no time of a step")
    return run
