"""What a watcher is told of where the blocks are."""

from __future__ import annotations

import torch

from poros.streaming.device_slots import HostLane, Slot
from tests.engine.streaming.toy import ToyModel, gradients, stream


class NotingLane(HostLane):
    """Notes what is seen while a copy is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[str] = []
        self.look = lambda: ""

    def copy(self, slot: Slot, host: torch.Tensor) -> None:
        super().copy(slot, host)
        self.looks.append(self.look())


def test_each_block_is_seen_where_it_is() -> None:
    lane = NotingLane()
    manager, _ = stream(ToyModel(num_layers=6), num_slots=3, resident=(1,))
    manager._lane = lane
    lane.look = lambda: manager.seen()[0]
    assert manager.seen() == ("......", None, 0)
    manager.bind(0)
    assert manager.seen() == ("c.dd..", 0, 1)
    assert lane.looks == ["a.....", "c.a...", "c.da.."]
    manager.bind(1)
    assert manager.seen() == (".cddd.", 1, 1)
    manager.bind(2)
    assert manager.seen() == (".rcdd.", 2, 1)
    for index in (3, 4, 5, 5, 4):
        manager.bind(index, direction=1 if index == 3 else -1)
    assert manager.seen()[1:] == (4, -1)
    assert manager.seen()[0][4] == "c"
    manager.forget()
    assert manager.seen()[0] == "......"


def test_what_was_queued_and_not_waited_for_is_arriving() -> None:
    """As on a GPU, where the host runs ahead of the copies."""
    manager, _ = stream(ToyModel(num_layers=4), num_slots=3)
    for slot in manager._slots:
        slot.arrived = object()  # type: ignore[assignment]
    manager.bind(0)
    assert manager.seen()[0] == "caa."
    manager.bind(1)
    assert manager.seen()[0] == ".caa"


def test_looking_changes_nothing() -> None:
    plain, watched = ToyModel(), ToyModel()
    stream(plain)
    manager, attachment = stream(watched)
    seen = []
    for layer in attachment.streamed:
        layer.layer.dropout.register_forward_pre_hook(lambda *_: seen.append(manager.seen()))
    first, second = gradients(plain, steps=2), gradients(watched, steps=2)
    assert len(first) == len(second) > 0
    assert all(a.equal(b) for a, b in zip(first, second, strict=True))
    assert {index for _, index, _ in seen} == set(range(6))
    assert {direction for *_, direction in seen} == {1, -1}
