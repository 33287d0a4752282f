"""What of a run lies where: blocks and their slots on the device, the rest here or on the host.

No plan changes a bit of the result; a smaller one needs less of the device's memory and more time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

FEWEST_SLOTS = 2
"""One block computes while another arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Which groups of tensors lie on the host between their uses, and what the ring has.

    Attributes:
        num_slots: Slots of the ring.
        resident: Indices of the blocks that have a place of their own on the device, ascending:
            they are copied once and pass the ring by.
        head_prefetch: A head on the host comes while the last blocks compute, not after them.
        head_on_host: The head's weight; it visits the device for the loss.
        embeddings_on_host: The embeddings; rows are gathered on the CPU.
        moments_on_host: Adam's moments; each block's visit the device for its step.
        adapters_on_host: The adapters' weights and gradients; they travel with their block.
        boundaries_on_host: The hidden states between blocks that backward needs again.
    """

    num_slots: int = FEWEST_SLOTS
    resident: tuple[int, ...] = ()
    head_prefetch: bool = True
    head_on_host: bool = False
    embeddings_on_host: bool = False
    moments_on_host: bool = False
    adapters_on_host: bool = False
    boundaries_on_host: bool = False


_RUNGS: tuple[dict[str, Any], ...] = (
    {"head_prefetch": False},
    {"boundaries_on_host": True},
    {"head_on_host": True},
    {"embeddings_on_host": True},
    {"moments_on_host": True},
    {"adapters_on_host": True},
)
"""What a plan gives up one after the other, once blocks and slots have nothing left to give."""


def smaller(plan: MemoryPlan) -> MemoryPlan | None:
    """The next rung down: the plan that needs a little less of the device; None: there is none.

    Resident blocks halve until none is left (every other one goes, so the rest stay evenly spaced),
    then the ring shrinks to two slots, then one group after the other moves to the host.
    """
    if plan.resident:
        return replace(plan, resident=plan.resident[1::2])
    if plan.num_slots > FEWEST_SLOTS:
        return replace(plan, num_slots=FEWEST_SLOTS)
    for rung in _RUNGS:
        below = replace(plan, **rung)
        if below != plan:
            return below
    return None


def evenly_spaced(num_blocks: int, count: int) -> tuple[int, ...]:
    """Indices of `count` blocks among `num_blocks`, as far from each other as they can be.

    Between two of them the link has time for as many travelling blocks as between any others.
    """
    return tuple((2 * k + 1) * num_blocks // (2 * count) for k in range(count))


def memory_plan(vram_budget: float | str) -> MemoryPlan:
    """The plan that the setting ``vram_budget`` asks for: ``min`` is all that there is."""
    smallest = vram_budget == "min"
    return MemoryPlan(
        head_prefetch=not smallest,
        head_on_host=smallest,
        embeddings_on_host=smallest,
        moments_on_host=smallest,
        adapters_on_host=smallest,
        boundaries_on_host=smallest,
    )
