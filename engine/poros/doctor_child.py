"""Rows of `poros doctor` that need torch: tried in a child process with a time limit.

The child is `poros.measure.kernel_probe`; a crash or a hang of a broken stack ends there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from poros.doctor_rows import Row
from poros.memory_planner import Rates

SLOW_LINK_BYTES_PER_S = 8_000_000_000
"""A slower link is no PCIe 3 with 16 lanes."""

PROBES = {
    "torch": "torch",
    "bitsandbytes": "bitsandbytes",
    "bf16": "a bfloat16 product",
    "nf4": "a 4-bit product",
    "pinned": "pinned memory",
    "link": "the link's bandwidth",
    "arithmetic": "the card's arithmetic",
}
"""What the child tries, in its order."""

_GPU_ONLY = ("pinned", "link", "arithmetic")
_INSTALL = 'pip install "poros-tui[train]"'


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the child said.

    Attributes:
        found: The last record of each probe.
        ending: Why it ended early; empty: it did not.
    """

    found: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    ending: str = ""


def run_probe(
    *, gpu: int | None, timeout_s: float, command: Sequence[str] | None = None
) -> Outcome:
    """Start the child and wait for it.

    Args:
        gpu: Index of the card as CUDA counts them; None: the CPU.
        timeout_s: The child and what it started are killed then.
        command: In place of the child, for tests.
    """
    words = list(command or (sys.executable, "-m", "poros.measure.kernel_probe"))
    source = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    # A file and no pipe: what a killed child had said is still there.
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            [*words, str(-1 if gpu is None else gpu)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        ending = _wait(child, timeout_s)
        said.seek(0)
        return Outcome(_records(said.read()), ending)


def probe_rows(outcome: Outcome, capability: tuple[int, int] | None) -> Iterator[Row]:
    """A row for each probe.

    Args:
        outcome: Of the child.
        capability: Of the card that was tried; None: the CPU was.
    """
    for name, what in PROBES.items():
        if name in _GPU_ONLY and capability is None:
            continue
        found = outcome.found.get(name)
        if found is None:
            yield _unseen_row(name, what, outcome)
        elif found["state"] == "started":
            yield _ended_row(name, what, outcome.ending)
        elif found["state"] == "failed":
            yield _failed_row(name, what, str(found.get("error", "")))
        elif name == "torch":
            yield _torch_row(found, capability)
        else:
            yield _done_row(name, what, found)


def rows_without_torch(missing: str, *, gpu: bool) -> Iterator[Row]:
    """What could not be looked at, since a package is not installed."""
    for name, what in PROBES.items():
        if name not in _GPU_ONLY or gpu:
            yield Row(
                name,
                "unknown",
                f"{what} was not tried: {missing} is not installed",
                "training needs it; check, doctor, init and the other commands do not",
                _INSTALL,
            )


def missing_package() -> str:
    """The first package of the probes that is not installed; empty: all are."""
    return next((name for name in ("torch", "bitsandbytes") if find_spec(name) is None), "")


def measured_rates(outcome: Outcome) -> Rates | None:
    """What the card was measured to do; None: not both rates were."""
    link, arithmetic = (outcome.found.get(name, {}) for name in ("link", "arithmetic"))
    copied, multiplied = link.get("bytes_per_s"), arithmetic.get("operations_per_s")
    return Rates(copied, multiplied) if copied and multiplied else None


def _wait(child: subprocess.Popen[bytes] | subprocess.Popen[str], timeout_s: float) -> str:
    """Why the child ended before its time; empty: it did not."""
    try:
        code = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return f"it gave no answer within {timeout_s:g} s"
    finally:
        if child.poll() is None:
            _kill(child)
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with code {code}" if code else ""


def _kill(child: subprocess.Popen[Any]) -> None:
    """End the child's whole session; a process stuck in the driver can't be waited for."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(5)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        return


def _records(text: str) -> dict[str, dict[str, Any]]:
    """The last record of each probe; what libraries print between is passed over."""
    found: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"probe", "state"} <= record.keys():
            found[str(record["probe"])] = record
    return found


def _torch_row(found: Mapping[str, Any], capability: tuple[int, int] | None) -> Row:
    build = found.get("cuda_build") or "none"
    what = f"torch {found.get('version')}, built for CUDA {build}"
    if capability is None:
        return Row("torch", "ok", what, "torch starts; it trains on the CPU here")
    card = f"sm_{capability[0]}{capability[1]}"
    if build == "none":
        return Row(
            "torch",
            "bad",
            what,
            "this build can't use the GPU",
            "pip install --force-reinstall torch (see https://pytorch.org for your CUDA)",
        )
    if not found.get("cuda_available"):
        return Row(
            "torch",
            "bad",
            f"{what}: it sees no GPU",
            "the driver is too old for this build, or CUDA_VISIBLE_DEVICES hides the card",
            "install a newer driver, or a torch built for an older CUDA (https://pytorch.org)",
        )
    if not runs_on(capability, found.get("archs") or []):
        return Row(
            "torch",
            "bad",
            f"{what}, without kernels for this card ({card})",
            "each kernel would fail with `no kernel image is available`",
            "pip install --upgrade torch, in a build that has this card (https://pytorch.org)",
        )
    return Row("torch", "ok", f"{what}, with kernels for this card ({card})", "torch sees the card")


def runs_on(capability: tuple[int, int], archs: Sequence[str]) -> bool:
    """Whether a build has kernels for a card: of its generation, or code to compile for it."""
    major, minor = capability
    for arch in archs:
        kind, _, number = arch.partition("_")
        digits = "".join(c for c in number if c.isdigit())
        if not digits:
            continue
        built = (int(digits[:-1] or 0), int(digits[-1]))
        if kind == "sm" and not number.endswith("a") and built[0] == major and built[1] <= minor:
            return True
        if arch in (f"sm_{major}{minor}a", f"sm_{major}{minor}f"):
            return True
        if kind == "compute" and built <= capability:
            return True
    return False


def _done_row(name: str, what: str, found: Mapping[str, Any]) -> Row:
    where = found.get("device")
    if name == "link":
        return _link_row(float(found["bytes_per_s"]))
    if name == "arithmetic":
        told = f"{float(found['operations_per_s']) / 1e12:.0f} TFLOPS of bfloat16 products"
        return Row(
            name, "ok", told, "`poros check` tells the time of a step from this and the link"
        )
    if name == "pinned":
        size = f"{int(found['num_bytes']) / 1e6:.0f} MB"
        return Row(name, "ok", f"{size} were pinned", "blocks travel straight from their place")
    if name == "bitsandbytes":
        return Row(name, "ok", f"bitsandbytes {found.get('version')} starts", "it packs the base")
    return Row(name, "ok", f"{what} on {where} is right", "this kernel runs on this machine")


def _link_row(bytes_per_s: float) -> Row:
    what = f"{bytes_per_s / 1e9:.1f} GB/s from pinned memory"
    if bytes_per_s < SLOW_LINK_BYTES_PER_S:
        return Row(
            "link",
            "warn",
            what,
            "a slow link: copies of blocks may take longer than their arithmetic",
            "seat the card in a slot with 16 lanes; larger batches hide the copies",
        )
    return Row("link", "ok", what, "blocks reach the card at this rate")


def _failed_row(name: str, what: str, error: str) -> Row:
    if name == "pinned":
        return Row(
            name,
            "warn",
            f"memory can't be pinned ({error})",
            "blocks wait in plain memory and are copied twice, which is slower",
            "under WSL raise `memory=` in %UserProfile%\\.wslconfig",
        )
    fixes = {"torch": _INSTALL, "bitsandbytes": "pip install --upgrade bitsandbytes"}
    fix = fixes.get(name, "pip install --upgrade torch bitsandbytes, or a newer driver")
    return Row(name, "bad", f"{what}: {error}", "training would fail there", fix)


def _ended_row(name: str, what: str, ending: str) -> Row:
    return Row(
        name,
        "bad",
        f"{what} never ended: {ending or 'no answer'}",
        "a broken driver or build; training would end the same way",
        "restart the machine; if it stays, install torch and the driver anew",
    )


def _unseen_row(name: str, what: str, outcome: Outcome) -> Row:
    reason = outcome.ending or "an earlier row failed"
    return Row(name, "unknown", f"{what} was not reached: {reason}", "the rows above say why", "")
