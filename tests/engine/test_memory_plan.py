"""The ladder of plans, from all that fits down to what the smallest cards hold."""

from __future__ import annotations

from poros.memory_plan import MemoryPlan, memory_plan, smaller


def rungs(plan: MemoryPlan) -> list[MemoryPlan]:
    found = []
    below: MemoryPlan | None = plan
    while below is not None:
        found.append(below)
        below = smaller(below)
    return found


def test_the_ladder_goes_down_in_the_written_order_and_ends() -> None:
    plans = rungs(MemoryPlan(num_slots=4, resident=(1, 3, 5, 7)))
    assert [len(plan.resident) for plan in plans[:4]] == [4, 2, 1, 0]
    assert [plan.num_slots for plan in plans[3:5]] == [4, 2]
    groups = [
        "head_prefetch", "boundaries_on_host", "head_on_host", "embeddings_on_host",
        "moments_on_host", "adapters_on_host",
    ]  # fmt: skip
    assert len(plans) == 5 + len(groups)
    for group, above, below in zip(groups, plans[4:], plans[5:], strict=False):
        changed = {
            name for name in MemoryPlan.__slots__ if getattr(above, name) != getattr(below, name)
        }
        assert changed == {group}


def test_half_of_the_resident_blocks_stay_evenly_spaced() -> None:
    below = smaller(MemoryPlan(resident=(0, 2, 4, 6, 8)))
    assert below is not None
    assert below.resident == (2, 6)


def test_the_smallest_setting_stands_at_the_foot_of_the_ladder() -> None:
    foot = rungs(MemoryPlan(num_slots=3, resident=(0,)))[-1]
    assert foot in rungs(memory_plan("min"))
    assert smaller(foot) is None
