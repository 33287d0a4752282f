"""Rows of `poros doctor` that need torch, from what the child of `doctor_probe` said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from poros.doctor_probe import Outcome, Record
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


def live_rows(
    said: Generator[Record, None, str],
    capability: tuple[int, int] | None,
    *,
    trying: Callable[[str, str], None] = lambda *_: None,
    only: Collection[str] = PROBES,
) -> Generator[Row, None, Outcome]:
    """A row for each probe, as soon as it has ended.

    Args:
        said: By the child (`doctor_probe.watch`).
        capability: Of the card that is tried; None: the CPU is.
        trying: Told the name of each probe, and what it is, when it begins.
        only: The probes that were asked for.

    Returns:
        All that the child said.
    """
    found: dict[str, Record] = {}
    told: set[str] = set()
    while True:
        try:
            record = next(said)
        except StopIteration as end:
            outcome = Outcome(found, end.value)
            break
        name = str(record["probe"])
        found[name] = record
        if name not in _expected(capability, only):
            continue
        if record["state"] == "started":
            trying(name, PROBES[name])
        else:
            told.add(name)
            yield _row(name, Outcome(found), capability)
    for name in _expected(capability, only):
        if name not in told:
            yield _row(name, outcome, capability)
    return outcome


def probe_rows(outcome: Outcome, capability: tuple[int, int] | None) -> Iterator[Row]:
    """A row for each probe of a child that has ended.

    Args:
        outcome: Of the child.
        capability: Of the card that was tried; None: the CPU was.
    """
    for name in _expected(capability, PROBES):
        yield _row(name, outcome, capability)


def rows_without_torch(missing: str, *, gpu: bool) -> Iterator[Row]:
    """What could not be looked at, since a package is not installed."""
    for name in _expected((0, 0) if gpu else None, PROBES):
        yield Row(
            name,
            "unknown",
            f"{PROBES[name]} was not tried: {missing} is not installed",
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


def _expected(capability: tuple[int, int] | None, only: Collection[str]) -> list[str]:
    return [name for name in PROBES if name in only and (capability or name not in _GPU_ONLY)]


def _row(name: str, outcome: Outcome, capability: tuple[int, int] | None) -> Row:
    what, found = PROBES[name], outcome.found.get(name)
    if found is None:
        return _unseen_row(name, what, outcome)
    if found["state"] == "started":
        return _ended_row(name, what, outcome.ending)
    if found["state"] == "failed":
        return _failed_row(name, what, str(found.get("error", "")))
    if name == "torch":
        return _torch_row(found, capability)
    return _done_row(name, what, found)


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
