"""The gate's processes: one per arm, a few at a time, each with a log file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE_SCRIPT = Path(__file__).with_name("reference.py")

_POLL_S = 0.2
_FOLDERS = re.compile(r"(?<![\w.:/])/(?:[\w.+@-]+/)+")


@dataclass(frozen=True)
class Job:
    """One process.

    Attributes:
        name: What it is called in the report.
        arguments: What comes after ``python``.
        after: It starts when no job whose name begins so is waiting or running; empty: at once.
    """

    name: str
    arguments: tuple[str, ...]
    after: str = ""


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    name: str
    exit_code: int
    duration_s: float
    last_lines: str

    def as_record(self) -> dict[str, Any]:
        """For the artifact, which others read: why it failed, without this machine's folders."""
        said = _FOLDERS.sub("", self.last_lines) if self.exit_code else ""
        return vars(self) | {"last_lines": said}


def reference_job(name: str, plan_folder: Path, output: Path, *more: str) -> Job:
    """The reference, as a script outside any package (-P: its folder is not on the path)."""
    return Job(name, ("-P", str(REFERENCE_SCRIPT), str(plan_folder), str(output), *more))


def product_job(name: str, module: str, *arguments: str | Path) -> Job:
    """A module of the product."""
    return Job(name, ("-m", f"poros.measure.{module}", *map(str, arguments)))


def run_jobs(
    jobs: Sequence[Job], *, logs: Path, num_parallel: int, num_threads: int,
    say: Callable[[str], None],
) -> dict[str, Ended]:  # fmt: skip
    """Run all jobs, `num_parallel` at a time; a job that fails does not stop the others.

    They start in their order, but for those that must come after others.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting, running = list(jobs), dict[str, _Running]()
    ended: dict[str, Ended] = {}
    try:
        while waiting or running:
            while len(running) < num_parallel and (job := _next(waiting, running)) is not None:
                waiting.remove(job)
                running[job.name] = _Running(job, logs / f"{job.name}.txt", num_threads)
            for name, process in list(running.items()):
                done = process.ended()
                if done is not None:
                    ended[name] = done
                    del running[name]
                    say(_sentence(done))
            time.sleep(_POLL_S if running else 0)
    finally:
        for process in running.values():
            process.stop()
    return ended


def _next(waiting: Sequence[Job], running: Iterable[str]) -> Job | None:
    unfinished = [*running, *(job.name for job in waiting)]
    for job in waiting:
        if not job.after or not any(name.startswith(job.after) for name in unfinished):
            return job
    return None


class _Running:
    def __init__(self, job: Job, log: Path, num_threads: int) -> None:
        self._job, self._log = job, log
        self._started_s = time.monotonic()
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                [sys.executable, *job.arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(num_threads),
            )

    def ended(self) -> Ended | None:
        code = self._process.poll()
        if code is None:
            return None
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
        duration_s = time.monotonic() - self._started_s
        return Ended(self._job.name, code, duration_s, "\n".join(tail))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def _environment(num_threads: int) -> dict[str, str]:
    """The parent's, so that all arms find the same packages, with the settings that both need."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": str(num_threads),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        # Code that an earlier run left on disk gave a layer other bits than compiling it anew.
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    }


def _sentence(done: Ended) -> str:
    how = "done" if done.exit_code == 0 else f"FAILED with exit code {done.exit_code}"
    return f"{done.name}: {how} after {done.duration_s:.0f} s"
