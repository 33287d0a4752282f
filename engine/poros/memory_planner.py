"""Which plan to run: the fastest of the ladder's rungs that fits the memory that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from poros.errors import PorosOOMError
from poros.memory_plan import MemoryPlan, evenly_spaced, smaller
from poros.memory_sizes import (
    LOGIT_BYTES,
    SHORT_BYTES,
    ModelSizes,
    StepShape,
    budget_for,
    copied_bytes,
    device_level_bytes,
    lasting_bytes,
    operations,
    peak_bytes,
    phase_bytes,
    waited_bytes,
)
from poros.told_sizes import told_size

WORTH_IT = 0.99
"""A rung further down is taken only if it makes the step shorter than this part of it."""

Correct = Callable[[MemoryPlan, int], int]
"""An estimated peak as earlier runs would have it."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the machine was measured to do; None: not known."""

    link_bytes_per_s: float | None = None
    operations_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A plan, and what is expected of it.

    Attributes:
        plan: What lies where.
        peak_bytes: The most that the allocator gives out.
        phase: When.
        device_bytes: What the process then takes of the card.
        copied_bytes: Over the link in a step.
        step_s: The larger of link and arithmetic; None: unknown.
        bottleneck: Which of them, in words.
    """

    plan: MemoryPlan
    peak_bytes: int
    phase: str
    device_bytes: int
    copied_bytes: int
    step_s: float | None
    bottleneck: str


def as_estimated(plan: MemoryPlan, peak: int) -> int:
    """No earlier run is known."""
    del plan
    return peak


def estimate(
    plan: MemoryPlan,
    sizes: ModelSizes,
    step: StepShape,
    *,
    rates: Rates | None = None,
    correct: Correct = as_estimated,
) -> Estimate:
    """What a plan will take."""
    peak = correct(plan, peak_bytes(plan, sizes, step))
    phases = phase_bytes(plan, sizes, step)
    step_s, bottleneck = _step_time(plan, sizes, step, rates or Rates())
    return Estimate(
        plan=plan,
        peak_bytes=peak,
        phase=max(phases, key=lambda name: phases[name]),
        device_bytes=device_level_bytes(peak),
        copied_bytes=copied_bytes(plan, sizes, step),
        step_s=step_s,
        bottleneck=bottleneck,
    )


def choose(
    budget_bytes: int,
    sizes: ModelSizes,
    step: StepShape,
    *,
    num_slots: int = 2,
    rates: Rates | None = None,
    correct: Correct = as_estimated,
) -> Estimate:
    """The fastest rung that fits: with as many resident blocks as there is room for.

    Args:
        budget_bytes: What may be allocated: a budget less its margin (`usable_bytes`).
        sizes: The model.
        step: The step.
        num_slots: Slots of the ring on the upper rungs.
        rates: Of the machine; without them the rung with the fewest bytes over the link.
        correct: What earlier runs know.

    Raises:
        PorosOOMError: Not even the smallest plan fits.
    """
    best: Estimate | None = None
    for rung in _variants(MemoryPlan(num_slots=num_slots)):
        filled = _filled(rung, budget_bytes, sizes, step, correct)
        if filled is None:
            continue
        found = estimate(filled, sizes, step, rates=rates, correct=correct)
        if best is None or _cost(found) < WORTH_IT * _cost(best):
            best = found
    if best is None:
        raise too_small(budget_bytes, sizes, step, correct)
    return best


def all_on_device(
    budget_bytes: int, sizes: ModelSizes, step: StepShape, *, num_slots: int = 2
) -> MemoryPlan | None:
    """The ladder's top, with as many resident blocks as fit beside such a step; None: it does not.

    Args:
        budget_bytes: As for `choose`.
        sizes: The model.
        step: The step.
        num_slots: Slots of the ring.
    """
    return _filled(MemoryPlan(num_slots=num_slots), budget_bytes, sizes, step, as_estimated)


def rungs(plan: MemoryPlan) -> Iterator[MemoryPlan]:
    """The plan, and all that are smaller, the largest first."""
    below: MemoryPlan | None = plan
    while below is not None:
        yield below
        below = smaller(below)


def _variants(plan: MemoryPlan) -> Iterator[MemoryPlan]:
    """The rungs, those with the head on the host also with it fetched early.

    That needs room beside the last blocks, and saves waiting for the whole head.
    """
    for rung in rungs(plan):
        if rung.head_on_host:
            yield replace(rung, head_prefetch=True)
        yield rung


def smallest(plan: MemoryPlan) -> MemoryPlan:
    """The ladder's foot."""
    return list(rungs(plan))[-1]


def too_small(
    budget_bytes: int, sizes: ModelSizes, step: StepShape, correct: Correct = as_estimated
) -> PorosOOMError:
    """What to say when nothing fits: the memory that is needed, or the rows that would fit."""
    needed_bytes = _foot_bytes(sizes, step, correct)
    num_rows = rows_that_fit(budget_bytes, sizes, step, correct)
    needed_gb = -(-needed_bytes // 10**7) / 100
    setting_gb = -(-budget_for(needed_bytes) // 10**7) / 100
    way_out = f"set vram_budget: {setting_gb:.2f} if the card has it"
    if num_rows:
        way_out += (
            f"; {num_rows} tokens a micro-batch would fit: lower max_seq_length or"
            " per_device_batch_size to that, which starts another run"
        )
    return PorosOOMError(
        f"the smallest plan needs {needed_gb:.2f} GB of the device for {step.num_rows} tokens a"
        f" micro-batch, {told_size(budget_bytes)} are there for it",
        where="vram_budget",
        remediation=way_out,
        phase="plan",
        asked_bytes=needed_bytes,
        cap_bytes=budget_bytes,
        setting=f"vram_budget: {setting_gb:.2f}",
    )


def rows_that_fit(
    budget_bytes: int, sizes: ModelSizes, step: StepShape, correct: Correct = as_estimated
) -> int:
    """The most rows of a micro-batch, fewer than the step's, for which the smallest plan fits."""
    return fitting_rows(
        budget_bytes,
        step.num_rows,
        lambda num_rows: _foot_bytes(sizes, replace(step, num_rows=num_rows), correct),
    )


def _foot_bytes(sizes: ModelSizes, step: StepShape, correct: Correct) -> int:
    foot = smallest(MemoryPlan())
    return correct(foot, peak_bytes(foot, sizes, step))


def least_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> int:
    """What a plan takes for certain: nothing estimated is in it."""
    boundary = SHORT_BYTES * step.num_rows * sizes.hidden_size
    boundaries = boundary * (1 if plan.boundaries_on_host else sizes.num_layers)
    lasting = lasting_bytes(plan, sizes)
    visit = sizes.head_bytes if plan.head_on_host else 0
    logits = LOGIT_BYTES * step.num_rows * sizes.vocab_size
    return sum(lasting.values()) - lasting["workspaces"] + boundaries + visit + logits


def fitting_rows(budget_bytes: int, num_rows: int, needed: Callable[[int], int]) -> int:
    """The most rows of a micro-batch, below `num_rows`, that need no more than the budget."""
    return _largest(num_rows - 1, lambda rows: rows == 0 or needed(rows) <= budget_bytes)


def _filled(
    rung: MemoryPlan, budget_bytes: int, sizes: ModelSizes, step: StepShape, correct: Correct
) -> MemoryPlan | None:
    def with_resident(count: int) -> MemoryPlan:
        return replace(rung, resident=evenly_spaced(sizes.num_blocks, count))

    def fits(count: int) -> bool:
        plan = with_resident(count)
        return correct(plan, peak_bytes(plan, sizes, step)) <= budget_bytes

    # All resident need no ring, hence may fit where one fewer does not.
    if fits(sizes.num_blocks):
        return with_resident(sizes.num_blocks)
    if not fits(0):
        return None
    return with_resident(_largest(sizes.num_blocks - 1, fits))


def _largest(highest: int, holds: Callable[[int], bool]) -> int:
    """The largest of 0 to `highest` for which it holds, as it does for 0 and not beyond one."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _cost(found: Estimate) -> float:
    return found.step_s if found.step_s is not None else float(found.copied_bytes)


def _step_time(
    plan: MemoryPlan, sizes: ModelSizes, step: StepShape, rates: Rates
) -> tuple[float | None, str]:
    moved = copied_bytes(plan, sizes, step)
    if not rates.link_bytes_per_s or not rates.operations_per_s:
        return None, "unknown: neither link nor arithmetic was measured"
    alone_s = waited_bytes(plan, sizes, step) / rates.link_bytes_per_s
    link_s = moved / rates.link_bytes_per_s - alone_s
    arithmetic_s = operations(sizes, step) / rates.operations_per_s
    if link_s > arithmetic_s:
        words = f"the link: {told_size(moved, 1)} a step at {rates.link_bytes_per_s / 1e9:.0f} GB/s"
        return link_s + alone_s, words
    return arithmetic_s + alone_s, "arithmetic: the link has time to spare"
