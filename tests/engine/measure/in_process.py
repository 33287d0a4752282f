"""The gate's jobs in the process of the test, which has torch: a process each costs its imports."""

import contextlib
import importlib.util
import io
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest

from poros.measure import arms, differences, gate
from poros.measure.arms import Ended, Job


@contextlib.contextmanager
def in_this_process() -> Iterator[None]:
    """Inside, `run_gate` starts no process, but for modules that are not there."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (gate, differences):
            patch.setattr(module, "run_jobs", run_jobs)
        yield


def run_jobs(
    jobs: Sequence[Job], *, logs: Path, num_parallel: int, num_threads: int,
    say: Callable[[str], None],
) -> dict[str, Ended]:  # fmt: skip
    """One after the other, those that must come after others last."""
    ended = {}
    for job in sorted(jobs, key=lambda job: bool(job.after)):
        path = script_of(job)
        if path is None:
            more = {"num_parallel": 1, "num_threads": num_threads}
            ended |= arms.run_jobs([job], logs=logs, say=say, **more)
        else:
            ended[job.name] = _run(job, path)
    return ended


def script_of(job: Job) -> Path | None:
    """The file that the job's python runs; None: there is none."""
    if job.arguments[0] == "-P":
        return Path(job.arguments[1])
    found = importlib.util.find_spec(job.arguments[1])
    return Path(found.origin) if found is not None and found.origin else None


def _run(job: Job, path: Path) -> Ended:
    said = io.StringIO()
    code = 0
    with (
        mock.patch.object(sys, "argv", [str(path), *job.arguments[2:]]),
        mock.patch.dict(os.environ, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            said.write(f"{stop.code}\n")
        except Exception:  # noqa: BLE001 - as a process would end
            code = 1
            said.write(traceback.format_exc())
    return Ended(job.name, code, 0.0, "\n".join(said.getvalue().splitlines()[-12:]))
