"""The learning rate is a pure function of the step."""

import pytest

from poros.training.optimizer import learning_rate_at


def rates(schedule: str, *, warmup_steps: int = 2, total_steps: int = 6) -> list[float]:
    return [
        learning_rate_at(
            step, base=1.0, warmup_steps=warmup_steps, total_steps=total_steps, schedule=schedule
        )
        for step in range(1, total_steps + 1)
    ]


def test_it_rises_over_the_warm_up_and_then_stays():
    assert rates("constant") == [0.5, 1, 1, 1, 1, 1]


def test_it_falls_on_a_straight_line():
    assert rates("linear") == [0.5, 1, 1, 0.75, 0.5, 0.25]


def test_it_falls_by_half_a_cosine():
    assert rates("cosine") == pytest.approx([0.5, 1, 1, 0.853553, 0.5, 0.146447], abs=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_no_step_is_wasted_at_rate_zero(schedule):
    for warmup_steps in (0, 1, 6, 100):
        assert all(rate > 0 for rate in rates(schedule, warmup_steps=warmup_steps))
