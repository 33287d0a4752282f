"""What an arm wrote down: per cell and step the digest of every item, in the order they arose.

The reference writes the same lines with code of its own (it may not import this project); a test
holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from safetensors.torch import save_file
from torch import Tensor

from poros.measure.fingerprint import digest, merkle_root

_HASHERS = ThreadPoolExecutor(8)  # hashing releases the GIL; a 32B step has 2 GB to hash


@dataclass(frozen=True)
class StepRecord:
    """One step's items (step 0: the adapter before the first one)."""

    step: int
    digests: dict[str, str]
    zeros: tuple[str, ...] = ()
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> str:
        """The Merkle root over all items."""
        return merkle_root(self.digests)


@dataclass
class ArmRecord:
    """One arm's run of one cell; ``end`` holds its measurements, empty if it never got there."""

    cell: str
    steps: list[StepRecord] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    def step(self, number: int) -> StepRecord | None:
        """The record of a step, if the arm made it."""
        return next((record for record in self.steps if record.step == number), None)


class Recorder:
    """Takes each item of a step as `train_step` offers it and writes a line at the step's end."""

    def __init__(
        self, cell: str, file: TextIO | None, *, dump: dict[str, Any] | None = None, step: int = 0
    ) -> None:
        """Begin at step `step`; without a file the lines are only kept in `record`."""
        self.record = ArmRecord(cell)
        self._file, self._dump, self._step = file, dump, step
        self._names: list[str] = []
        self._found: dict[str, Future[tuple[str, bool]]] = {}

    def note(self, name: str, tensor: Tensor) -> None:
        """Copy one item now, before the run goes on and changes it, and digest it meanwhile."""
        data = tensor.detach().to("cpu", copy=True)
        self._found[name] = _HASHERS.submit(_digest_and_zero, data)
        place = {"cell": self.record.cell, "step": self._step, "item": name}
        if self._dump is not None and place.items() <= self._dump.items():
            save_file({"item": data.contiguous()}, f"{self._dump['folder']}/streamed.safetensors")

    def end_step(self, **values: Any) -> None:
        """Close the step."""
        found = {name: future.result() for name, future in self._found.items()}
        digests = {name: text for name, (text, _) in found.items()}
        zeros = tuple(name for name, (_, is_zero) in found.items() if is_zero)
        step = StepRecord(self._step, digests, zeros, values)
        self.record.steps.append(step)
        line = {"kind": "step", "cell": self.record.cell, "step": step.step, "zeros": zeros}
        names = list(step.digests)
        if names != self._names:
            line["names"] = names
        self._write(line | values | {"digests": list(step.digests.values())})
        self._names, self._step, self._found = names, self._step + 1, {}

    def end(self, **measurements: Any) -> ArmRecord:
        """Close the cell."""
        self.record.end = measurements
        self._write({"kind": "end", "cell": self.record.cell} | measurements)
        return self.record

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def _digest_and_zero(data: Tensor) -> tuple[str, bool]:
    return digest(data), not bool(data.any())


def read_records(*paths: Path) -> dict[str, ArmRecord]:
    """Each cell's record from the files of one arm; a torn last line is left out."""
    arms: dict[str, ArmRecord] = {}
    names: dict[str, list[str]] = {}
    for path in paths:
        for line in _lines(path):
            cell = line.pop("cell")
            arm = arms.setdefault(cell, ArmRecord(cell))
            if line.pop("kind") == "end":
                arm.end = line
                continue
            names[cell] = line.pop("names", names.get(cell, []))
            digests = dict(zip(names[cell], line.pop("digests"), strict=True))
            zeros = tuple(line.pop("zeros"))
            arm.steps.append(StepRecord(line.pop("step"), digests, zeros, line))
    return arms


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                yield json.loads(text)
