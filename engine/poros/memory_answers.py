"""What answers take of the device under a plan, and the plan for the memory that is there.

R tokens of the longest conversation. No gradient is kept: one layer's results at a time, and the
keys and values of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poros.memory_plan import MemoryPlan, evenly_spaced, smaller
from poros.memory_sizes import FLOAT_BYTES, SHORT_BYTES, ModelSizes, lasting_bytes

_RESULTS_AT_ONCE = 3
"""Of a layer's widest linear: gate, up and their product; of hidden states: the layer's input, what
the norm made of it, what is added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """What the plan depends on of the conversations.

    Attributes:
        num_tokens: R, of the longest one.
        cache_bytes: Keys and values of a token, all layers.
    """

    num_tokens: int
    cache_bytes: int


def without_training(plan: MemoryPlan) -> MemoryPlan:
    """The plan where nothing is trained: no moments, and adapters stay where they are needed."""
    return replace(plan, moments_on_host=False, adapters_on_host=False, boundaries_on_host=False)


def answer_bytes(plan: MemoryPlan, sizes: ModelSizes, shape: AnswerShape) -> int:
    """The most that is allocated at once while answers are made."""
    lasting = lasting_bytes(plan, sizes)
    widest = max((linear.num_outputs for linear in sizes.linears), default=0)
    per_token = SHORT_BYTES * _RESULTS_AT_ONCE * (widest + sizes.hidden_size)
    # An adapter multiplies a copy of its input, in its own type.
    per_token += FLOAT_BYTES * max((x.num_inputs for x in sizes.linears if x.adapted), default=0)
    unpacked = max((x.num_inputs * x.num_outputs for x in sizes.linears), default=0)
    layer = shape.num_tokens * per_token + SHORT_BYTES * unpacked
    logits = (SHORT_BYTES + FLOAT_BYTES) * sizes.vocab_size  # of the last token alone
    if plan.head_on_host:
        logits += sizes.head_bytes
    cache = shape.num_tokens * shape.cache_bytes
    return sum(lasting.values()) - lasting["moments"] + cache + max(layer, logits)


def plan_for_answers(
    usable_bytes: int, sizes: ModelSizes, shape: AnswerShape, *, num_slots: int
) -> MemoryPlan:
    """The largest plan that fits, with as many resident blocks as there is room for.

    A byte that lies on the host comes over the link for every token, whatever it is of: so nothing
    goes there before all blocks travel.

    Args:
        usable_bytes: What may be allocated.
        sizes: The model.
        shape: Of the conversations.
        num_slots: Slots of the ring on the upper rungs.

    Returns:
        The smallest plan where none fits: these are estimates, and shorter conversations may.
    """
    below: MemoryPlan | None = MemoryPlan(num_slots=num_slots)
    plan = MemoryPlan()
    while below is not None:
        plan = without_training(below)
        if answer_bytes(plan, sizes, shape) <= usable_bytes:
            return _with_resident(plan, usable_bytes, sizes, shape)
        below = smaller(below)
    return plan


def _with_resident(
    plan: MemoryPlan, usable_bytes: int, sizes: ModelSizes, shape: AnswerShape
) -> MemoryPlan:
    for count in range(sizes.num_blocks, 0, -1):
        filled = replace(plan, resident=evenly_spaced(sizes.num_blocks, count))
        if answer_bytes(filled, sizes, shape) <= usable_bytes:
            return filled
    return plan
