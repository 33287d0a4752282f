"""Verdicts: one per claim and cell, PASS, FAIL or REFUSED, with what was counted.

[Note: the claims are never merged into one word]
A      the reference, run twice, repeats itself
B-fwd  losses of streamed and resident run are equal
B-bwd  every adapter gradient before the clip, and the gradient norm
C      a resumed run equals the uninterrupted one
D      every adapter tensor and both Adam moments after every step
A claim about nothing is REFUSED, not PASS: nothing compared, another count than the plan's,
lora_B zero, a gradient that is zero, a loss that stands still, adapters that do not change,
an arm that is missing, or a streamed arm that did not stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from poros.measure.plan import Cell
from poros.measure.records import ArmRecord, StepRecord

Word = Literal["PASS", "FAIL", "REFUSED"]

KINDS: dict[str, tuple[str, ...]] = {
    "A": ("loss", "grad", "grad_norm", "adapter", "exp_avg", "exp_avg_sq"),
    "B-fwd": ("loss",),
    "B-bwd": ("grad", "grad_norm"),
    "C": ("loss", "grad", "grad_norm", "adapter", "exp_avg", "exp_avg_sq"),
    "D": ("adapter", "exp_avg", "exp_avg_sq"),
}
"""Which items a claim is about: the part of an item's name before its first point."""

CLAIMS = ("A", "B-fwd", "B-bwd", "D", "C")
"""As a report shows them."""


@dataclass(frozen=True)
class FirstDifference:
    """Where two arms first part."""

    step: int
    item: str
    left: str | None
    right: str | None

    @property
    def micro_batch(self) -> int | None:
        """The micro-batch, for a loss; gradients are sums over the step's micro-batches."""
        return int(self.item.removeprefix("loss.")) if self.item.startswith("loss.") else None


@dataclass(frozen=True)
class Verdict:
    """The answer to one claim about one cell."""

    claim: str
    cell: str
    word: Word
    num_compared: int
    num_expected: int
    reason: str = ""
    first_difference: FirstDifference | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        record = asdict(self)
        if self.first_difference is not None:
            record["first_difference"]["micro_batch"] = self.first_difference.micro_batch
        return record


def expected_count(claim: str, cell: Cell, num_adapter_tensors: int, num_steps: int) -> int:
    """How many items a claim must compare, from the plan and the adapter file alone."""
    per_step = {
        "loss": cell.accumulation,
        "grad": num_adapter_tensors,
        "grad_norm": 1,
        "adapter": num_adapter_tensors,
        "exp_avg": num_adapter_tensors,
        "exp_avg_sq": num_adapter_tensors,
    }
    return num_steps * sum(per_step[kind] for kind in KINDS[claim])


def judge(
    claim: str,
    cell: Cell,
    left: ArmRecord | None,
    right: ArmRecord | None,
    *,
    num_adapter_tensors: int,
    steps: Sequence[int] | None = None,
) -> Verdict:
    """Compare two arms of a cell under one claim.

    Args:
        claim: A key of `KINDS`.
        cell: The cell.
        left: The arm that is right by definition; None: it is missing.
        right: The arm that must equal it.
        num_adapter_tensors: Tensors in the adapter's file.
        steps: The steps to compare; all of the plan, if left out.
    """
    numbers = list(range(1, cell.num_steps + 1)) if steps is None else list(steps)
    num_expected = expected_count(claim, cell, num_adapter_tensors, len(numbers))
    if left is None or right is None:
        which = "the first" if left is None else "the second"
        return Verdict(claim, cell.name, "REFUSED", 0, num_expected, f"{which} arm is missing")
    num_compared, first = _compare(claim, left, right, numbers)
    if first is not None:
        return Verdict(claim, cell.name, "FAIL", num_compared, num_expected, "bytes differ", first)
    reason = _vacuous(claim, left, right, numbers) or _miscounted(num_compared, num_expected)
    word: Word = "REFUSED" if reason else "PASS"
    return Verdict(claim, cell.name, word, num_compared, num_expected, reason)


def _compare(
    claim: str, left: ArmRecord, right: ArmRecord, steps: Sequence[int]
) -> tuple[int, FirstDifference | None]:
    """The number of items that both arms have, and the first that is not equal."""
    num_compared, first = 0, None
    for number in steps:
        a, b = left.step(number), right.step(number)
        if a is None or b is None:
            continue
        for item in _items(claim, a, b):
            mine, other = a.digests.get(item), b.digests.get(item)
            num_compared += mine is not None and other is not None
            if first is None and mine != other:
                first = FirstDifference(number, item, mine, other)
    return num_compared, first


def _items(claim: str, a: StepRecord, b: StepRecord) -> Iterator[str]:
    for item in dict.fromkeys([*a.digests, *b.digests]):
        if item.partition(".")[0] in KINDS[claim]:
            yield item


def _miscounted(num_compared: int, num_expected: int) -> str:
    if num_compared == 0:
        return "nothing was compared"
    if num_compared != num_expected:
        return f"{num_compared} items compared, the plan has {num_expected}"
    return ""


def _vacuous(claim: str, left: ArmRecord, right: ArmRecord, steps: Sequence[int]) -> str:
    """Why equality of these arms would say nothing; empty if it says something."""
    if not left.end or not right.end:
        return f"the {'second' if left.end else 'first'} arm did not reach its end"
    if claim != "A":
        proof = right.end.get("streaming_proof", {"proved": False, "reason": "no proof"})
        if not proof["proved"]:
            return f"not streamed: {proof['reason']}"
    return _standing(left, steps) or _standing(right, steps)


def _standing(arm: ArmRecord, steps: Sequence[int]) -> str:
    """What does not move in an arm's run although it should."""
    start, records = arm.step(0), [record for record in arm.steps if record.step in steps]
    zeros = list(start.zeros if start else ())
    zeros += [item for record in records for item in record.zeros if item.startswith("grad")]
    if zeros:
        return f"{zeros[0]} is zero"
    if _still(records):
        return "the loss does not change from step to step"
    if start and records:
        unmoved = _unmoved(start, records[-1])
        return f"{unmoved} never changed" if unmoved else ""
    return ""


def _still(records: Sequence[StepRecord]) -> bool:
    losses = [
        tuple(digest for item, digest in record.digests.items() if item.startswith("loss."))
        for record in records
    ]
    return len(losses) > 1 and len(set(losses)) == 1


def _unmoved(start: StepRecord, last: StepRecord) -> str:
    return next(
        (item for item, before in start.digests.items() if last.digests.get(item) == before), ""
    )
