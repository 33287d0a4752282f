"""What the fault tests work on: a tiny run in a folder of its own, and its command line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poros.errors import PorosError
from poros.event_log import read_events
from poros.events import StepFinished
from poros.training.checkpoint import verify
from poros.training.resume import list_checkpoints
from tests.engine.training.tiny_run import TINY_SETTINGS

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0

SETTINGS: dict[str, Any] = {
    "model_name_or_path": "./model",
    "dataset": "data.jsonl",
    "output_dir": "out",
    **TINY_SETTINGS,
}


class TrialServer:
    """The process that forks; see `tests.faults.trial_server`."""

    def __init__(self, environ: dict[str, str]) -> None:
        """Start it; ready when torch is loaded."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.trial_server"],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, **request: Any) -> Any:
        """Send a request and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@dataclass
class Ended:
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def error_lines(self) -> list[str]:
        """The lines about errors on stderr."""
        return [line for line in self.stderr.splitlines() if "error[" in line]


@dataclass
class Trial:
    """A command line that runs."""

    bench: Bench
    pid: int
    stdout: Path
    stderr: Path

    def wait(self, timeout_s: float = TIMEOUT_S) -> Ended:
        """Wait for its end; killed when it does not end in time."""
        code = self.bench.server.ask(do="wait", pid=self.pid, timeout_s=timeout_s)
        if code is None:
            self.kill()
            self.bench.server.ask(do="wait", pid=self.pid, timeout_s=10)
            raise TimeoutError(f"no end within {timeout_s} s")
        return Ended(code, _text(self.stdout), _text(self.stderr))

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as the kernel does."""
        self.send(signal.SIGKILL)

    def wait_for_step(self, step: int = 1) -> None:
        """Until its event file has the step."""
        until_s = time.monotonic() + TIMEOUT_S
        while self.bench.last_step < step:
            assert time.monotonic() < until_s, "no step"
            time.sleep(0.02)


@dataclass
class Bench:
    """A folder with a model, data and a config, in which a fault is planted."""

    folder: Path
    server: TrialServer
    environ: dict[str, str]
    settings: dict[str, Any] = field(default_factory=lambda: dict(SETTINGS))
    config: bytes | None = None
    """Written in place of the settings."""
    flags: list[str] = field(default_factory=list)
    plant: str = ""
    """A function of `tests.faults.plants` that runs in the process before the command line."""
    stdout: str = ""
    stderr: str = ""
    _num_trials: int = 0

    @property
    def out(self) -> Path:
        """The run folder."""
        return self.folder / self.settings["output_dir"]

    @property
    def model(self) -> Path:
        """The model folder, this bench's own."""
        return self.folder / "model"

    @property
    def data(self) -> Path:
        """The data file."""
        return self.folder / "data.jsonl"

    @property
    def last_step(self) -> int:
        """Of the event file."""
        path = self.out / "events.jsonl"
        found = read_events(path) if path.exists() else ()
        return max((e.step for e in found if isinstance(e, StepFinished)), default=0)

    def start(self, *arguments: str, command: str = "train") -> Trial:
        """Run `poros train train.yaml` with this bench's flags."""
        self._num_trials += 1
        text = self.config if self.config is not None else json.dumps(self.settings).encode()
        (self.folder / "train.yaml").write_bytes(text)
        stdout, stderr = (
            self.folder / f"{name}-{self._num_trials}" for name in ("stdout", "stderr")
        )
        words = [*(arguments or (command, "train.yaml")), *self.flags]
        pid = self.server.ask(
            do="start",
            folder=str(self.folder),
            environ=self.environ,
            arguments=[os.fsencode(word).hex() for word in words],
            plant=self.plant,
            stdout=self.stdout or str(stdout),
            stderr=self.stderr or str(stderr),
        )
        return Trial(self, pid, stdout, stderr)

    def run(self, *arguments: str) -> Ended:
        """Start, and wait for the end."""
        return self.start(*arguments).wait()

    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints; each of them must verify."""
        found = list_checkpoints(self.out / "checkpoints")
        assert [verify(path).step for _, path in found] == [step for step, _ in found]
        return sorted(step for step, _ in found)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """The run folder, or its absence, is the same before and after."""
        before = files_of(self.out)
        yield
        assert files_of(self.out) == before


@dataclass(frozen=True)
class Case:
    """A row of the fault table.

    Attributes:
        fault: Its number on the faults page.
        title: A sentence: what is wrong.
        plant: Puts the fault into a bench.
        code: The exit code.
        words: All stand in the one error line.
        num_errors: Error lines, one for each problem.
    """

    fault: int
    title: str
    plant: Callable[[Bench], object]
    code: int
    words: tuple[str, ...]
    num_errors: int = 1

    def __str__(self) -> str:
        """The test's name."""
        return f"fault {self.fault}: {self.title}"


def expect(ended: Ended, code: int, *words: str, num_errors: int = 1) -> None:
    """One clear line for each problem, its exit code, and never a traceback."""
    shown = f"exit code {ended.code}\n{ended.stdout}\n{ended.stderr}"
    assert ended.code == code, shown
    assert "Traceback" not in ended.stdout + ended.stderr, shown
    lines = ended.stderr.splitlines()
    assert len(ended.error_lines) == num_errors, shown
    assert all(line.startswith("poros: ") and line.isprintable() for line in lines), shown
    assert all(f"[{name}]" in line for line in ended.error_lines for name in [_name_of(line, code)])
    for word in words:
        assert any(word in line for line in ended.error_lines), f"no {word!r} in\n{shown}"


def refuse(case: Case, bench: Bench) -> None:
    """The case's fault is refused before anything is written to the run folder."""
    case.plant(bench)
    with bench.unchanged():
        ended = bench.run()
    expect(ended, case.code, *case.words, num_errors=case.num_errors)


def files_of(folder: Path) -> dict[str, str] | None:
    """Name to sha256 of all that lies in a folder; the lock file names its last holder."""
    try:
        folder.lstat()
    except OSError:
        return None
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in sorted(folder.rglob("*"))
        if path.name != "lock"
    }


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None deletes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "backslashreplace") if path.exists() else ""


def _name_of(line: str, code: int) -> str:
    kinds = [PorosError, *_below(PorosError)]
    names = [kind.code for kind in kinds if kind.exit_code == code]
    found = [name for name in names if f"poros: error[{name}]: " in line]
    assert found, f"none of {names} in {line}"
    return found[0]


def _below(kind: type[PorosError]) -> list[type[PorosError]]:
    return [inner for sub in kind.__subclasses__() for inner in (sub, *_below(sub))]
