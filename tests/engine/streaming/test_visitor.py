"""A visitor is on the device while somebody stays, and no longer."""

from __future__ import annotations

import gc

import pytest
import torch

from poros.streaming.block import Block
from poros.streaming.visitor import Visitor
from tests.engine.streaming.toy import CPU, ToyLayer, ToyModel, frozen_tensors, gradients, stream


@pytest.fixture
def frozen():
    return frozen_tensors(ToyLayer(1), "0")


@pytest.fixture
def visitor(frozen):
    ring, _ = stream(ToyModel(num_layers=4))
    return Visitor(Block.lay_out(0, frozen, device=CPU), ring, device=CPU)


def test_the_bytes_are_there_until_the_last_stay_ends(frozen, visitor) -> None:
    first = visitor.stay()
    second = visitor.stay()
    first.end()
    first.end()
    assert visitor.present
    assert all(entry.value.equal(visitor._block.tensor(entry.name)) for entry in frozen)
    second.end()
    assert not visitor.present
    assert all(entry.value.numel() == 0 for entry in frozen)
    assert visitor.num_copies == 1


def test_a_stay_that_nobody_ends_ends_when_it_is_dropped(visitor) -> None:
    stay = visitor.stay()
    assert visitor.present
    del stay
    gc.collect()
    assert not visitor.present


def test_what_was_fetched_is_not_copied_again(visitor) -> None:
    visitor.fetch()
    visitor.fetch()
    visitor.stay().end()
    visitor.stay().end()
    assert visitor.num_copies == 2
    assert visitor._ring.copied_bytes == 2 * visitor._block.num_bytes


def test_a_fetched_block_may_leave_without_a_stay(frozen, visitor) -> None:
    visitor.fetch()
    visitor.leave()
    assert not visitor.present
    assert all(entry.value.numel() == 0 for entry in frozen)


def test_room_is_marked_after_queued_kernels_and_the_copy_waited_for(visitor) -> None:
    calls = []
    lane = visitor._lane
    for name in ("copy", "wait", "release", "keep"):
        own = getattr(lane, name)
        setattr(
            lane,
            name,
            lambda slot, *rest, own=own, name=name: (calls.append(name), own(slot, *rest)),
        )
    visitor.fetch()
    visitor.leave()
    assert calls == ["release", "copy", "wait", "release"]


@pytest.mark.parametrize(("num_slots", "first"), [(2, 4), (3, 3), (6, 0)])
def test_the_ring_says_when_the_link_is_idle_in_a_forward(num_slots, first) -> None:
    model = ToyModel(num_layers=6)
    manager, _ = stream(model, num_slots=num_slots)
    bound, idle = [], []
    bind = manager.bind

    def watched(index: int, **where: object) -> None:
        bound.append(index)
        bind(index, **where)

    manager.bind = watched
    manager.when_idle = lambda: idle.append(bound[-1])
    gradients(model, steps=1)
    assert idle == list(range(first, 6))
    idle.clear()
    with torch.no_grad():
        model(torch.ones(4, 8))
    assert idle == []
