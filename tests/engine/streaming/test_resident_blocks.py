"""Blocks with a place of their own: the resident run's bits, one copy, and places given back."""

from __future__ import annotations

import pytest
import torch

from poros.measure.fingerprint import same_bits
from poros.memory_plan import evenly_spaced
from tests.engine.streaming.toy import ToyModel, gradients, stream

NUM_LAYERS = 6


def resident_gradients() -> list[torch.Tensor]:
    return gradients(ToyModel(NUM_LAYERS), steps=3)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("num_slots", [2, 3])
@pytest.mark.parametrize("layers_per_block", [1, 2])
@pytest.mark.parametrize("resident", [(0,), (1, 2), (0, 2), (0, 1, 2)])
def test_any_resident_blocks_give_the_resident_gradients(
    resident, layers_per_block, num_slots, prefetch
) -> None:
    model = ToyModel(NUM_LAYERS)
    stream(
        model, num_slots=num_slots, layers_per_block=layers_per_block, prefetch=prefetch,
        resident=resident, poison=True,
    )  # fmt: skip
    found, expected = gradients(model, steps=3), resident_gradients()
    assert len(found) == len(expected) == 3 * (2 + 2 * NUM_LAYERS)
    assert all(map(same_bits, found, expected))


def test_a_ring_gives_up_places_and_slots_between_steps_and_keeps_the_bits() -> None:
    model = ToyModel(NUM_LAYERS)
    manager, _ = stream(model, num_slots=3, resident=evenly_spaced(NUM_LAYERS, NUM_LAYERS))
    assert (manager.num_slots, manager.slot_bytes) == (0, 0)
    expected = gradients(ToyModel(NUM_LAYERS), steps=1)
    for resident, num_slots in (((1, 4), 3), ((4,), 3), ((), 2)):
        assert all(map(same_bits, gradients(model, steps=1), expected))
        manager.shrink(num_slots=num_slots, resident=resident)
        assert (manager.resident, manager.num_slots) == (resident, num_slots)
    assert all(map(same_bits, gradients(model, steps=1), expected))
    with pytest.raises(ValueError, match="to stay resident"):
        manager.shrink(num_slots=2, resident=(1,))


def test_a_block_that_does_not_exist_cannot_be_resident() -> None:
    with pytest.raises(ValueError, match="there are 6 blocks"):
        stream(ToyModel(NUM_LAYERS), resident=(6,))


def test_a_ring_says_that_the_link_is_idle_once_the_last_travelling_block_is_there() -> None:
    model = ToyModel(NUM_LAYERS)
    manager, _ = stream(model, resident=(4, 5))
    idle: list[int] = []
    for index in range(NUM_LAYERS):
        manager.when_idle = lambda index=index: idle.append(index)
        manager.bind(index)
    assert idle == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, ()), (1, (4,)), (2, (2, 6)), (8, tuple(range(8)))]
)
def test_resident_blocks_are_evenly_spaced(count, expected) -> None:
    assert evenly_spaced(8, count) == expected
