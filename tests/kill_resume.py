"""Runs killed by SIGKILL at random moments and resumed, against the uninterrupted run, by bytes.

    python tests/kill_resume.py --runs 30        each with one to three kills, a third of them
                                                 inside a checkpoint; exits 1 at any difference
    python tests/kill_resume.py --prove          mutants that must turn it red

Compared: adapter, both moments and steps of the optimizer, random states, and the numbers of every
step event, each step exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "engine"), str(ROOT)]

KILL_POINTS = (
    "checkpoint.begin", "checkpoint.adapter", "checkpoint.tensors", "checkpoint.rotate",
    "atomic.begin", "atomic.written", "atomic.file_fsync", "atomic.manifest", "atomic.dir_fsync",
    "atomic.rename", "atomic.parent_fsync", "events.write", "train.step", "train.after_step",
)  # fmt: skip
TIMEOUT_S = 300


@dataclass(frozen=True)
class Bench:
    """A tiny model, its settings, and what an uninterrupted run gives."""

    folder: Path
    settings: dict[str, Any]
    expected: dict[str, Any]
    duration_s: float


def command(settings: dict[str, Any], output: Path, mutant: str | None) -> list[str]:
    """The command line of one start."""
    config = output.with_suffix(".yaml")
    config.write_text(json.dumps(settings | {"output_dir": str(output)}))
    poros = [sys.executable, "-m", "poros"]
    if mutant:
        poros = [sys.executable, str(Path(__file__).resolve()), "--as", mutant]
    return [*poros, "train", str(config)]


def start(
    settings: dict[str, Any], output: Path, *, mutant: str | None = None, failpoint: str = ""
) -> subprocess.Popen[bytes]:
    """A real process; its words go beside the run folder."""
    path = os.pathsep.join([str(ROOT / "engine"), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment["POROS_FAILPOINT"] = failpoint
    environment["XDG_CACHE_HOME"] = str(output.parent / "cache")
    with output.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            command(settings, output, mutant), env=environment, stdout=log, stderr=log
        )


def make_bench(folder: Path) -> Bench:
    """Write model and data, and run once without a kill."""
    from tests.engine.training.tiny_run import results_of, tiny_settings, write_chat_model

    model = write_chat_model(folder / "model")
    settings = tiny_settings(model, folder) | {"max_steps": 10, "lora_dropout": 0.1}
    warm = start(settings, folder / "warm")  # fills the NF4 cache
    assert warm.wait(TIMEOUT_S) == 0, (folder / "warm.log").read_text()
    began_s = time.monotonic()
    process = start(settings, folder / "whole")
    assert process.wait(TIMEOUT_S) == 0, (folder / "whole.log").read_text()
    return Bench(folder, settings, results_of(folder / "whole"), time.monotonic() - began_s)


def kill_once(bench: Bench, output: Path, draw: random.Random, mutant: str | None) -> str:
    """Start, and kill at a random time or place; says how."""
    if draw.random() < 1 / 3:
        point = f"{draw.choice(KILL_POINTS)}:kill@{draw.randint(1, 5)}"
        process = start(bench.settings, output, mutant=mutant, failpoint=point)
        code = process.wait(TIMEOUT_S)
        return f"{point} ({'killed' if code == -signal.SIGKILL else f'ended with {code}'})"
    seconds = draw.uniform(0.3, 1.0) * bench.duration_s
    process = start(bench.settings, output, mutant=mutant)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait()
    return f"after {seconds:.2f} s"


def differences(bench: Bench, output: Path) -> list[str]:
    """What of a run is not as in the uninterrupted one."""
    from tests.engine.training.tiny_run import results_of

    try:
        found = results_of(output)
    except OSError as error:
        return [str(error)]
    return [name for name in bench.expected if found[name] != bench.expected[name]]


def one_run(bench: Bench, number: int, draw: random.Random) -> bool:
    """Kill one to three times, then let it finish; True when all bytes are equal."""
    output = bench.folder / f"run-{number}"
    kills = [kill_once(bench, output, draw, None) for _ in range(draw.randint(1, 3))]
    code = start(bench.settings, output).wait(TIMEOUT_S)
    wrong = differences(bench, output) if code == 0 else [f"exit code {code}"]
    print(f"run {number}: {'; '.join(kills)}: {wrong or 'equal'}", flush=True)
    if wrong:
        print(output.with_suffix(".log").read_text()[-2000:])
    else:
        shutil.rmtree(output)
    return not wrong


def prove(bench: Bench) -> bool:
    """Each mutant, killed once at the same place, must show; the code as it is must not."""
    ok = True
    for mutant in (None, *MUTANTS):
        output = bench.folder / f"mutant-{mutant}"
        # The second checkpoint: there is one to fall back on.
        point = "checkpoint.tensors:kill@2"
        start(bench.settings, output, mutant=mutant, failpoint=point).wait(TIMEOUT_S)
        code = start(bench.settings, output, mutant=mutant).wait(TIMEOUT_S)
        wrong = differences(bench, output) if code == 0 else [f"exit code {code}"]
        ok &= bool(wrong) == (mutant is not None)
        print(f"{mutant or 'no mutant'}: {wrong or 'equal'}", flush=True)
    return ok


def _naive_writer() -> None:
    """Files are written where they belong, and what lies there is believed."""
    from poros import atomic
    from poros.training import checkpoint, resume

    @contextlib.contextmanager
    def naive_dir(final: Path, **options: Any) -> Iterator[Path]:
        final.mkdir(exist_ok=True)
        yield final

    def believe(folder: Path) -> Any:
        try:
            return checkpoint._read_state(folder)
        except checkpoint.PorosResumeError:
            last = int(folder.name.rpartition("-")[2])
            older = folder.with_name(f"step-{last - 2:06d}")
            state = checkpoint._read_state(older)
            return type(state)(**{**_fields(state), "step": last})

    atomic.atomic_dir = naive_dir
    checkpoint.verify = resume.verify = believe


def _lost_random_state() -> None:
    from poros.training import checkpoint

    checkpoint.set_rng_state = lambda state, device: None


def _one_batch_late() -> None:
    from poros.data.batches import StepBatches

    seek = StepBatches.seek

    def late(self: StepBatches, cursor: dict[str, int]) -> None:
        seek(self, cursor)
        self.next_step()

    StepBatches.seek = late  # type: ignore[method-assign]  # a mutant


def _lost_moments() -> None:
    from poros.training import checkpoint

    read = checkpoint._read_tensors
    checkpoint._read_tensors = lambda folder, name: (
        {} if name == "optimizer" else read(folder, name)
    )


def _fields(state: Any) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__dataclass_fields__}


MUTANTS = {
    "naive-writer": _naive_writer,
    "lost-random-state": _lost_random_state,
    "one-batch-late": _one_batch_late,
    "lost-moments": _lost_moments,
}


def main() -> int:
    """Run as the command line says."""
    if sys.argv[1:2] == ["--as"]:
        mutant = sys.argv[2]
        del sys.argv[1:3]
        MUTANTS[mutant]()
        from poros.cli import main as poros

        poros()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prove", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = make_bench(Path(folder))
        print(f"an uninterrupted run takes {bench.duration_s:.1f} s", flush=True)
        if options.prove:
            return 0 if prove(bench) else 1
        draw = random.Random(options.seed)
        equal = [one_run(bench, number, draw) for number in range(options.runs)]
        print(f"{sum(equal)} of {options.runs} runs equal")
        return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
