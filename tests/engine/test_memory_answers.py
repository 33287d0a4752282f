"""Plans for answers: what stays on the card as its memory gets less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poros.memory_answers import AnswerShape, answer_bytes, plan_for_answers, without_training
from poros.memory_plan import MemoryPlan, evenly_spaced, memory_plan
from tests.engine.test_memory_planner import qwen_7b

SIZES = qwen_7b()
SHAPE = AnswerShape(num_tokens=8192, cache_bytes=2 * 512 * 2 * 28)


def planned(gigabytes: float) -> MemoryPlan:
    return plan_for_answers(round(gigabytes * 1e9), SIZES, SHAPE, num_slots=3)


def test_all_blocks_stay_where_there_is_room() -> None:
    assert planned(24) == MemoryPlan(num_slots=3, resident=tuple(range(28)))


@pytest.mark.parametrize("gigabytes", [5.5, 6.5, 7.5])
def test_as_many_blocks_stay_as_fit_and_no_more(gigabytes: float) -> None:
    plan = planned(gigabytes)
    count = len(plan.resident)
    assert 0 < count < 28
    assert answer_bytes(plan, SIZES, SHAPE) <= gigabytes * 1e9
    one_more = replace(plan, resident=evenly_spaced(28, count + 1))
    assert answer_bytes(one_more, SIZES, SHAPE) > gigabytes * 1e9


def test_the_ends_go_only_when_all_blocks_travel() -> None:
    bare = answer_bytes(MemoryPlan(), SIZES, SHAPE) / 1e9
    assert not planned(bare + 0.1).head_on_host
    assert planned(bare - 0.01).head_on_host
    assert not planned(bare - 0.01).embeddings_on_host
    least = planned(0.1)
    assert least == without_training(memory_plan("min"))
    assert (least.adapters_on_host, least.moments_on_host) == (False, False)
    assert answer_bytes(least, SIZES, SHAPE) < answer_bytes(MemoryPlan(), SIZES, SHAPE) - 1.9e9
