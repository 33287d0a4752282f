"""The child of `poros doctor` that tries kernels: started, listened to, ended at its time limit.

It is `poros.measure.kernel_probe`; a crash or a hang of a broken stack ends there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

Record = dict[str, Any]
"""What the child says of a probe: ``probe``, ``state`` (started, failed, done) and its findings."""

_LOOK_S = 0.02
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the child said.

    Attributes:
        found: The last record of each probe.
        ending: Why it ended early; empty: it did not.
    """

    found: Mapping[str, Record] = field(default_factory=dict)
    ending: str = ""


def watch(
    *,
    gpu: int | None,
    timeout_s: float,
    probes: Collection[str] = (),
    command: Sequence[str] | None = None,
) -> Generator[Record, None, str]:
    """Start the child, and hear it to its end.

    Args:
        gpu: Index of the card as CUDA counts them; None: the CPU.
        timeout_s: The child and what it started are killed then.
        probes: Those to try beside torch itself; empty: all.
        command: In place of the child, for tests.

    Returns:
        Why it ended early; empty: it did not.
    """
    words = list(command or (sys.executable, "-m", "poros.measure.kernel_probe"))
    source = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    # A file and no pipe: what a killed child had said is still there.
    with tempfile.TemporaryFile("w+b") as said:
        child = subprocess.Popen(
            [*words, str(-1 if gpu is None else gpu), *probes],
            stdin=subprocess.DEVNULL,
            stdout=said.fileno(),
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            heard = _Ear(said)
            ends_at = time.monotonic() + timeout_s
            while child.poll() is None and time.monotonic() < ends_at:
                yield from heard.new()
                time.sleep(_LOOK_S)
            ending = _ending(child.poll(), timeout_s)
            yield from heard.new()
        finally:
            if child.poll() is None:
                _kill(child)
    return ending


def run_probe(
    *, gpu: int | None, timeout_s: float, command: Sequence[str] | None = None
) -> Outcome:
    """Start the child and wait for it; the arguments are those of `watch`."""
    said = watch(gpu=gpu, timeout_s=timeout_s, command=command)
    found: dict[str, Record] = {}
    while True:
        try:
            record = next(said)
        except StopIteration as end:
            return Outcome(found, end.value)
        found[str(record["probe"])] = record


class _Ear:
    """Reads a file that another process writes; its place is our own, not the writer's."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at, self._rest = file, 0, b""

    def new(self) -> Iterator[Record]:
        """Records of whole lines; what libraries print between is passed over."""
        # Not by seek and read: the child shares the file's position and would write there.
        while part := os.pread(self._file.fileno(), _PIECE_BYTES, self._at):
            self._at += len(part)
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict) and {"probe", "state"} <= record.keys():
                    yield record


def _ending(code: int | None, timeout_s: float) -> str:
    """Why the child ended before its time; empty: it did not."""
    if code is None:
        return f"it gave no answer within {timeout_s:g} s"
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with code {code}" if code else ""


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End the child's whole session; a process stuck in the driver can't be waited for."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(5)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        return
