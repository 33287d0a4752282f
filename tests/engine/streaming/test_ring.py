"""What the ring copies, keeps and refuses."""

from __future__ import annotations

import pytest
import torch

from poros.streaming.block import ALIGNMENT_BYTES, Block
from poros.streaming.block_manager import BlockManager
from tests.engine.streaming.toy import CPU, ToyLayer, ToyModel, frozen_tensors, gradients, stream


def test_a_block_holds_every_tensor_aligned_and_leaves_placeholders() -> None:
    layer = ToyLayer(1)
    frozen = frozen_tensors(layer, "0")
    before = {entry.name: entry.value.clone() for entry in frozen}
    block = Block.lay_out(0, frozen, device=CPU)
    assert len(block.places) == len(frozen) == 5
    assert all(place.offset_bytes % ALIGNMENT_BYTES == 0 for place in block.places)
    assert all(entry.value.numel() == 0 for entry in frozen)
    for name, tensor in before.items():
        assert block.tensor(name).equal(tensor)
    block.point_at(block.host)
    assert all(entry.value.equal(before[entry.name]) for entry in frozen)


def test_a_step_copies_each_block_twice_but_for_those_kept_at_the_turns() -> None:
    model = ToyModel(num_layers=6)
    manager, _ = stream(model, num_slots=2)
    gradients(model, steps=1)
    assert manager.num_copies == 6 + 4
    gradients(model, steps=3)
    assert manager.num_copies == 6 + 4 + 3 * (4 + 4)


def test_a_forward_without_gradients_loads_the_first_block_after_the_last() -> None:
    model = ToyModel(num_layers=4)
    manager, _ = stream(model)
    with torch.no_grad():
        model(torch.ones(4, 8))
        model(torch.ones(4, 8))
    assert manager.num_copies == 2 * 4 + 1


def test_a_ring_that_forgets_copies_again() -> None:
    model = ToyModel(num_layers=2)
    manager, _ = stream(model)
    gradients(model, steps=2)
    assert manager.num_copies == 2
    manager.forget()
    gradients(model, steps=1)
    assert manager.num_copies == 4


def test_an_unbound_weight_fails_by_its_shape() -> None:
    model = ToyModel()
    stream(model)
    with pytest.raises(RuntimeError, match=r"size|shape"):
        torch.ones(4, 8) @ model.layers[0].weight


def test_one_slot_is_refused() -> None:
    block = Block.lay_out(0, frozen_tensors(ToyLayer(0), "0"), device=CPU)
    with pytest.raises(ValueError, match="num_slots is 1"):
        BlockManager([block], device=CPU, num_slots=1)
