"""What the settings come to, without a run."""

import pytest

from poros.config import PorosConfig
from poros.training.assembly import num_slots


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 2),
        ({"num_slots": 5}, 5),
        ({"num_slots": 5, "vram_budget": "min"}, 2),
        ({"vram_budget": 1.0}, 10),
        ({"vram_budget": 0.01}, 2),
        ({"num_slots": 12, "vram_budget": 1.0}, 12),
    ],
)
def test_the_budget_decides_how_many_blocks_have_room(settings, expected):
    assert num_slots(PorosConfig(**settings), slot_bytes=10**8) == expected
