"""The map of a step, with an allocator that is played by the test: it writes torch's format."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from poros.memory_sizes import CUBLAS_WORKSPACE_BYTES
from poros.training.holdings import Holding
from poros.training.memory_map import MappedParts, MemoryMapper, model_tensors

MB = 2**20


class OnCard(Tensor):
    """A CPU tensor that says it is on the card."""

    is_cuda = True


def on_card(num_bytes):
    return torch.zeros(num_bytes, dtype=torch.uint8).as_subclass(OnCard)


class PlayedAllocator:
    """Takes tensors as allocations of one large segment each."""

    def __init__(self, monkeypatch):
        self.trace, self.segments, self.kept = [], [], []
        self.count = self.used = self.peak = 0
        self.recording = False
        cuda = torch.cuda
        for target, name, value in (
            (cuda.memory, "_record_memory_history", self._record),
            (cuda.memory, "_snapshot", self._snapshot),
            (cuda, "memory_stats_as_nested_dict", self._stats),
            (cuda, "max_memory_allocated", lambda device: self.peak),
            (cuda, "max_memory_reserved", lambda device: 99),
            (cuda, "reset_peak_memory_stats", self._reset),
            (cuda, "get_device_name", lambda device: "a card"),
        ):
            monkeypatch.setattr(target, name, value)

    def _record(self, enabled, **options):
        self.recording = enabled is not None
        self.trace.clear()

    def _snapshot(self, device):
        return {"segments": list(self.segments), "device_traces": [list(self.trace)]}

    def _stats(self, device):
        return {"allocation": {"all": {"allocated": self.count}}}

    def _reset(self, device):
        self.peak = self.used

    def take(self, tensor, frames=()):
        address, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        self.kept.append(tensor)
        self.count += 1
        self.used += size
        self.peak = max(self.peak, self.used)
        if self.recording:
            self.trace.append({"action": "segment_alloc", "addr": address, "size": size})
            self.trace.append(
                {"action": "alloc", "addr": address, "size": size, "frames": list(frames)}
            )
        else:
            part = {"size": size, "state": "active_allocated", "frames": []}
            self.segments.append(
                {"address": address, "device": 0, "total_size": size, "blocks": [part]}
            )
        return tensor

    def free(self, tensor):
        address = tensor.untyped_storage().data_ptr()
        self.used -= tensor.untyped_storage().nbytes()
        for action in ("free_requested", "free_completed"):
            self.trace.append({"action": action, "addr": address, "size": 0})


class Layer(nn.Module):
    def forward(self, hidden):
        return self.make()


class Optimizer(SimpleNamespace):
    def holdings(self, params):
        return [Holding(name="moments", host_bytes=7)]


@pytest.fixture
def card(monkeypatch):
    return PlayedAllocator(monkeypatch)


def made(card, tmp_path, layer):
    weight = nn.Parameter(torch.zeros(4))
    parts = MappedParts(
        model=nn.Module(),
        layers=[layer],
        params=[("w", weight)],
        optimizer=Optimizer(state={}),
        manager=SimpleNamespace(buffers=[card.take(on_card(2 * MB))], place_buffers=[]),
        device=torch.device("cuda", 0),
        host_bytes=lambda: {"blocks": 5},
    )
    told = []
    return MemoryMapper(parts, tmp_path / "memory_map.json", told.append), told


def groups(record, key="groups"):
    return {group["name"]: group["num_bytes"] for group in record[key]}


LOSS = [{"filename": "/x/poros/training/exact_loss.py", "line": 1, "name": "_reduce"}]


def test_a_step_is_mapped_to_its_peak_with_the_allocators_own_sum(card, tmp_path):
    layer = Layer()
    mapper, told = made(card, tmp_path, layer)
    layer.make = lambda: card.take(on_card(3 * MB))
    with mapper.step(1):
        layer(card.take(on_card(MB)))
        chunk = card.take(on_card(4 * MB), LOSS)
        unknown = card.take(on_card(5 * MB))
        card.free(chunk)
        card.free(unknown)
    record = json.loads((tmp_path / "memory_map.json").read_text())
    assert record == mapper.record
    assert record["peak_bytes"] == record["torch_peak_bytes"] == 15 * MB
    assert groups(record) == {
        "backward outside the layers": 5 * MB,
        "loss: a chunk of rows": 4 * MB,
        "boundaries": 4 * MB,
        "slots of the ring": 2 * MB,
    }
    assert record["host"] == {"blocks": 5, "moments": 7}
    assert [(event.step, event.peak_bytes) for event in told] == [(1, 15 * MB)]
    assert not card.recording


def test_what_was_there_before_and_is_unknown_is_not_named(card, tmp_path):
    mapper, _ = made(card, tmp_path, Layer())
    card.take(on_card(7 * MB))
    card.take(on_card(CUBLAS_WORKSPACE_BYTES))
    with mapper.step(1):
        card.free(card.take(on_card(MB), LOSS))
    found = groups(mapper.record)
    assert found["not named, from before the step"] == 7 * MB
    assert found["cuBLAS workspace"] == 2**25


def test_only_a_higher_step_takes_the_maps_place(card, tmp_path):
    mapper, told = made(card, tmp_path, Layer())
    for step, size in ((1, 3 * MB), (2, 2 * MB), (3, 4 * MB)):
        with mapper.step(step):
            card.free(card.take(on_card(size)))
    assert [event.step for event in told] == [1, 3]
    assert mapper.peak_bytes == 6 * MB


def test_a_step_that_runs_out_of_memory_leaves_its_map(card, tmp_path):
    mapper, told = made(card, tmp_path, Layer())

    def run_out():
        held = card.take(on_card(3 * MB), LOSS)
        card.trace.append({"action": "oom", "size": 64 * MB, "device_free": 0})
        card.free(held)
        raise torch.OutOfMemoryError("played")

    with pytest.raises(torch.OutOfMemoryError), mapper.step(4):
        run_out()
    assert mapper.record["asked_bytes"] == 64 * MB
    assert groups(mapper.record) == {"loss: a chunk of rows": 3 * MB, "slots of the ring": 2 * MB}
    assert told[0].ran_out
    assert not card.recording


def test_gradients_are_known_when_they_are_summed(card, tmp_path):
    mapper, _ = made(card, tmp_path, Layer())
    weight = mapper._parts.params[0][1]
    with mapper.step(1):
        weight.sum().backward()
        assert weight.grad is not None
        gradient = weight.grad.as_subclass(OnCard)
        card.take(gradient)
        weight.grad = gradient
        weight.sum().backward()
    assert groups(mapper.record)["gradients"] == 16 * 32


@pytest.mark.parametrize("tied", [True, False])
def test_a_head_that_is_the_embeddings_is_named_as_both(tied):
    model = nn.ModuleDict({"words": nn.Embedding(4, 2), "head": nn.Linear(2, 4, bias=False)})
    if tied:
        model["head"].weight = model["words"].weight
    model.get_output_embeddings = lambda: model["head"]
    names = {}
    for name, tensor in model_tensors(model):
        names.setdefault(tensor.data_ptr(), name)  # what is noted first counts
    assert list(names.values()) == (["head and embeddings"] if tied else ["embeddings", "head"])
