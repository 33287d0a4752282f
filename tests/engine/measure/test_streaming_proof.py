import pytest
import torch

from poros.measure.streaming_proof import predicted_copies
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager

CPU = torch.device("cpu")


def ring(num_blocks: int, num_slots: int) -> BlockManager:
    holders = [torch.nn.Linear(4, 4) for _ in range(num_blocks)]
    blocks = [
        Block.lay_out(k, [FrozenTensor("w", holder.weight, "data")], device=CPU)
        for k, holder in enumerate(holders)
    ]
    return BlockManager(blocks, device=CPU, num_slots=num_slots)


@pytest.mark.parametrize(("num_blocks", "num_slots"), [(1, 2), (2, 2), (3, 2), (7, 2), (7, 3)])
def test_a_ring_makes_the_predicted_copies(num_blocks, num_slots):
    manager = ring(num_blocks, num_slots)
    for _ in range(3):
        for index in range(num_blocks):
            manager.bind(index, direction=1)
        for index in reversed(range(num_blocks)):
            manager.bind(index, direction=-1)
    assert manager.num_copies == predicted_copies(num_blocks, num_slots, num_passes=3)
