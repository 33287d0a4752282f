"""The planner: what it counts, what it takes, what it says when nothing fits."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from poros.errors import PorosOOMError
from poros.memory_plan import MemoryPlan, memory_plan, smaller
from poros.memory_planner import Rates, choose, estimate, rungs, smallest
from poros.memory_sizes import (
    LinearShape,
    ModelSizes,
    StepShape,
    budget_for,
    copied_bytes,
    peak_bytes,
    usable_bytes,
)

GATES = Path(__file__).parents[2] / "docs" / "validation"
SLOW_LINK, FAST_LINK = Rates(25e9, 1e15), Rates(1e15, 100e12)


def qwen_7b(num_layers: int = 28) -> ModelSizes:
    """As docs/validation has it: Qwen2.5 7B's widths, rank 16 on all linears."""
    hidden, mlp, keys = 3584, 18944, 512
    widths = [(hidden, hidden), (hidden, keys), (hidden, keys), (hidden, hidden)]
    widths += [(hidden, mlp), (hidden, mlp), (mlp, hidden)]
    head_bytes = 2 * 152064 * hidden
    return ModelSizes(
        block_bytes=(120247296,) * num_layers,
        num_layers=num_layers,
        linears=tuple(LinearShape(a, b, adapted=True) for a, b in widths),
        num_weights=num_layers * sum(a * b for a, b in widths),
        num_adapter_weights=num_layers * 16 * sum(a + b for a, b in widths),
        adapter_weight_bytes=4,
        hidden_size=hidden,
        vocab_size=152064,
        head_bytes=head_bytes,
        embedding_bytes=head_bytes,
        tied=False,
        other_bytes=2179997184 - 2 * head_bytes,
    )


STEP = StepShape(num_rows=512, accumulation=2)
SIZES = qwen_7b()


@pytest.mark.parametrize(
    ("folder", "plan", "sizes", "accumulation"),
    [
        ("h200-qwen2.5-7b", MemoryPlan(), qwen_7b(), 2),
        ("h200-qwen2.5-7b-4-layers", MemoryPlan(), qwen_7b(4), 2),
        ("h200-memory-qwen2.5-7b", memory_plan("min"), qwen_7b(), 1),
    ],
)
def test_the_estimate_is_the_peak_that_was_measured(folder, plan, sizes, accumulation) -> None:
    record = json.loads((GATES / folder / "gate.json").read_text(encoding="utf-8"))
    streamed = [row for row in record["measurements"] if row["arm"] == "streamed"]
    measured = streamed[0]["peak_allocated_bytes"]
    found = estimate(plan, sizes, replace(STEP, accumulation=accumulation))
    assert found.peak_bytes == pytest.approx(measured, rel=0.01)
    assert found.phase == "loss"


def test_every_rung_needs_no_more_than_the_one_above_but_for_what_is_not_in_use() -> None:
    top = MemoryPlan(num_slots=4, resident=tuple(range(28)))
    peaks = [peak_bytes(plan, SIZES, STEP) for plan in rungs(top) if not plan.resident]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < peaks[0] / 2
    assert smallest(top) == smallest(memory_plan("min"))


def test_a_copy_less_is_counted_for_every_resident_block_and_slot() -> None:
    block = SIZES.block_bytes[0]
    all_travel = copied_bytes(MemoryPlan(), SIZES, STEP)
    assert all_travel == 2 * 2 * 26 * block
    assert copied_bytes(MemoryPlan(resident=(3, 4)), SIZES, STEP) == 2 * 2 * 24 * block
    assert copied_bytes(MemoryPlan(num_slots=3), SIZES, STEP) == 2 * 2 * 25 * block
    assert copied_bytes(MemoryPlan(resident=tuple(range(28))), SIZES, STEP) == 0


def test_what_fits_whole_is_resident_whole() -> None:
    found = choose(16 * 10**9, SIZES, STEP)
    assert found.plan.resident == tuple(range(28))
    assert not found.plan.head_on_host
    assert found.copied_bytes == 0


@pytest.mark.parametrize("budget_gb", [2.0, 2.3, 2.6, 3, 3.5, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("rates", [None, SLOW_LINK, FAST_LINK])
def test_a_plan_fits_its_budget_and_one_block_more_would_not(budget_gb, rates) -> None:
    budget_bytes = round(budget_gb * 1e9)
    plan = choose(budget_bytes, SIZES, STEP, rates=rates).plan
    assert peak_bytes(plan, SIZES, STEP) <= budget_bytes
    if len(plan.resident) < 27:
        free = min(k for k in range(28) if k not in plan.resident)
        more = replace(plan, resident=tuple(sorted((*plan.resident, free))))
        assert peak_bytes(more, SIZES, STEP) > budget_bytes


def test_more_memory_never_makes_a_step_longer() -> None:
    times = [choose(n * 10**8, SIZES, STEP, rates=SLOW_LINK).step_s for n in range(20, 90)]
    assert None not in times
    assert all(later <= earlier / 0.99 for earlier, later in itertools.pairwise(times))
    assert times[-1] < times[0] / 2


def test_the_bottleneck_is_named_and_without_rates_the_time_is_unknown() -> None:
    slow, fast = (estimate(MemoryPlan(), SIZES, STEP, rates=r) for r in (SLOW_LINK, FAST_LINK))
    assert slow.bottleneck.startswith("the link: 12.5 GB a step at 25 GB/s")
    assert slow.step_s == pytest.approx(12.5e9 / 25e9, rel=0.01)
    assert fast.bottleneck.startswith("arithmetic")
    unknown = estimate(MemoryPlan(), SIZES, STEP)
    assert (unknown.step_s, unknown.bottleneck[:7]) == (None, "unknown")


def test_where_arithmetic_hides_the_link_nothing_leaves_the_device_needlessly() -> None:
    plan = choose(5 * 10**9, SIZES, STEP, rates=FAST_LINK).plan
    assert plan == MemoryPlan(resident=plan.resident, head_prefetch=plan.head_prefetch)


def test_when_nothing_fits_the_error_says_what_would() -> None:
    long = replace(STEP, num_rows=8192)
    with pytest.raises(PorosOOMError) as refused:
        choose(3 * 10**9, SIZES, long)
    foot = smallest(MemoryPlan())
    words = refused.value.remediation
    num_rows = int(words.split("; ")[1].split()[0])
    assert peak_bytes(foot, SIZES, replace(long, num_rows=num_rows)) <= 3 * 10**9
    assert peak_bytes(foot, SIZES, replace(long, num_rows=num_rows + 1)) > 3 * 10**9
    needed_gb = float(words.split("vram_budget: ")[1].split()[0])
    choose(usable_bytes(round(needed_gb * 1e9)), SIZES, long)
    error = refused.value
    assert (error.phase, error.cap_bytes) == ("plan", 3 * 10**9)
    assert error.asked_bytes == peak_bytes(foot, SIZES, long)
    assert error.setting == f"vram_budget: {needed_gb:.2f}"


@pytest.mark.parametrize("budget_bytes", [6 * 10**8, 2 * 10**9, 24 * 10**9])
def test_a_plan_leaves_the_allocator_whole_segments_or_a_part_of_a_large_budget(
    budget_bytes,
) -> None:
    left_bytes = budget_bytes - usable_bytes(budget_bytes)
    assert left_bytes == max(64 * 2**20, round(0.03 * budget_bytes))
    assert budget_for(usable_bytes(budget_bytes)) == pytest.approx(budget_bytes, abs=2)
    assert usable_bytes(budget_for(10**7)) >= 10**7
    assert usable_bytes(10**7) == 0


def test_a_correction_by_earlier_runs_moves_the_choice() -> None:
    def heavier(plan: MemoryPlan, peak: int) -> int:
        return peak + 10**9

    plain, corrected = (
        choose(5 * 10**9, SIZES, STEP, correct=c) for c in (lambda _, peak: peak, heavier)
    )
    assert plain.plan != corrected.plan
    assert corrected.peak_bytes <= 5 * 10**9


def test_the_head_comes_early_where_one_would_wait_for_it_and_that_is_given_up_first() -> None:
    computing = Rates(25e9, 1e13)
    plan = choose(25 * 10**8, SIZES, STEP, rates=computing).plan
    assert plan.head_on_host
    assert plan.head_prefetch
    bare = replace(plan, resident=())
    late = smaller(bare)
    assert late == replace(bare, head_prefetch=False)
    times = [estimate(p, SIZES, STEP, rates=computing).step_s for p in (bare, late)]
    assert times[1] - times[0] == pytest.approx(2 * SIZES.head_bytes / 25e9)
