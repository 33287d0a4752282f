import pytest
import torch

from poros.measure.streaming_proof import predicted_copies, proof
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import Boundaries

CPU = torch.device("cpu")


def ring(num_blocks: int, num_slots: int, **settings) -> BlockManager:
    holders = [torch.nn.Linear(4, 4) for _ in range(num_blocks)]
    blocks = [
        Block.lay_out(k, [FrozenTensor("w", holder.weight, "data")], device=CPU)
        for k, holder in enumerate(holders)
    ]
    return BlockManager(blocks, device=CPU, num_slots=num_slots, **settings)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize(("num_blocks", "num_slots"), [(1, 2), (2, 2), (3, 2), (7, 2), (7, 3)])
def test_a_ring_makes_the_predicted_copies(num_blocks, num_slots, prefetch):
    manager = ring(num_blocks, num_slots, prefetch=prefetch)
    for _ in range(3):
        for index in range(num_blocks):
            manager.bind(index, direction=1)
        for index in reversed(range(num_blocks)):
            manager.bind(index, direction=-1)
    assert manager.num_copies == predicted_copies(num_blocks, num_slots, num_passes=3)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize(
    ("num_blocks", "num_slots", "resident"),
    [(1, 2, (0,)), (2, 2, (0, 1)), (3, 2, (1,)), (7, 2, (0, 6)), (8, 2, (2, 3)), (9, 3, (0, 4, 8))],
)
def test_resident_blocks_are_copied_once_and_the_ring_passes_them_by(
    num_blocks, num_slots, resident, prefetch
):
    manager = ring(num_blocks, num_slots, prefetch=prefetch, resident=resident)
    for _ in range(3):
        for index in range(num_blocks):
            manager.bind(index, direction=1)
        for index in reversed(range(num_blocks)):
            manager.bind(index, direction=-1)
    shown = proof([], manager, num_blocks=num_blocks, num_passes=3)
    travelling = predicted_copies(num_blocks - len(resident), num_slots, num_passes=3)
    assert shown["num_copies"] == shown["num_predicted_copies"] == len(resident) + travelling
    assert shown["num_resident"] == len(resident)


@pytest.mark.parametrize(("num_blocks", "stays"), [(1, True), (2, True), (3, False)])
def test_blocks_that_all_have_a_slot_are_said_to_stay(num_blocks, stays):
    shown = proof([], ring(num_blocks, 2), num_blocks=num_blocks, num_passes=1)
    assert shown["stays"] is stays


def test_hidden_states_that_did_not_come_back_prove_nothing():
    manager = ring(2, 2)
    boundaries = Boundaries(manager, device=CPU)

    def reason() -> str:
        for index in range(2):
            manager.bind(index)
        layers, away = [torch.nn.Identity()], {"away": torch.empty(0)}
        manager.num_copies = 2
        shown = proof(layers, manager, num_blocks=2, num_passes=1, ends=away, boundaries=boundaries)
        return shown["reason"]

    assert "hidden states left and came back (0, 0)" in reason()
    with boundaries.leaving(torch.ones(3)) as boundary:
        pass
    assert "hidden states left and came back (1, 0)" in reason()
    boundary.arrive()
    assert reason() == ""
