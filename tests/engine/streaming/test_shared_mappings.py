"""Layers that share tensors through a mapping give the resident gradients, byte for byte."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from poros.measure.fingerprint import same_bits
from poros.streaming import block_function, call_parts
from poros.streaming.attach import SideRules
from poros.streaming.call_parts import Place
from tests.engine.streaming.sharing_toy import SharingModel
from tests.engine.streaming.toy import WIDTH, ToyModel, gradients, stream

SHARED = SideRules(shared_states=True)
NUM_ITEMS = 2 * (1 + 1 + 6 * 2)  # two steps of: loss, first, and each layer's adapter pair


def both(make: Callable[[], Any] = UserDict, **ring: Any) -> tuple[list[Tensor], list[Tensor]]:
    streamed = SharingModel(make)
    stream(streamed, rules=SHARED, **ring)
    return gradients(SharingModel(make)), gradients(streamed)


def equal(left: list[Tensor], right: list[Tensor]) -> list[bool]:
    assert len(left) == len(right) == NUM_ITEMS
    return [same_bits(a, b) for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("make", [UserDict, dict, OrderedDict, partial(defaultdict, list)])
def test_any_kind_of_mapping_gives_the_resident_gradients(make: Callable[[], Any]) -> None:
    assert all(equal(*both(make)))


@pytest.mark.parametrize("layers_per_block", [2, 3])
@pytest.mark.parametrize("num_slots", [2, 3])
def test_any_ring_gives_the_resident_gradients(num_slots: int, layers_per_block: int) -> None:
    ring = {"num_slots": num_slots, "layers_per_block": layers_per_block, "poison": True}
    assert all(equal(*both(**ring)))


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_under_autocast_too() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(equal(*both()))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own
def test_compiled_layers_too() -> None:
    def run(*, streamed: bool) -> list[Tensor]:
        torch._dynamo.reset()
        model = SharingModel(dict)
        for layer in model.layers:
            layer.forward = torch.compile(layer.forward, dynamic=False, backend="aot_eager")
        if streamed:
            stream(model, rules=SHARED)
        return gradients(model)

    assert all(equal(run(streamed=False), run(streamed=True)))


def test_an_entry_that_is_not_passed_on_has_its_gradients_added_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes = call_parts.MappingFrame.changes
    monkeypatch.setattr(
        call_parts.MappingFrame, "changes", lambda *a: changes(*a)._replace(passed={})
    )
    same = equal(*both())
    assert same[0]
    assert not all(same)


def test_a_tensor_that_goes_out_twice_has_its_gradients_added_in_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = call_parts.Parts._slot

    def forgetful(self: call_parts.Parts, leaf: object, mappings_apart: bool) -> Any:
        if isinstance(leaf, Tensor):
            self._index.clear()
        return slot(self, leaf, mappings_apart)

    monkeypatch.setattr(call_parts.Parts, "_slot", forgetful)
    same = equal(*both())
    assert same[0]
    assert not all(same)


def test_the_models_own_mapping_ends_as_in_a_resident_model() -> None:
    resident, streamed = SharingModel(), SharingModel()
    stream(streamed, rules=SHARED)
    for model in (resident, streamed):
        gradients(model, steps=1)
    assert list(streamed.shared) == list(resident.shared) == ["keys", "note"]
    assert streamed.shared["note"] == "written by 2"
    assert streamed.shared["keys"][0] is streamed.shared["keys"][1]
    assert all(map(same_bits, streamed.shared["keys"], resident.shared["keys"]))


def test_without_gradients_layers_write_into_the_models_own_mapping() -> None:
    resident, streamed = SharingModel(), SharingModel()
    stream(streamed)  # undeclared: nothing can be lost here
    with torch.no_grad():
        losses = [model.eval()(torch.ones(4, WIDTH)) for model in (resident, streamed)]
    assert same_bits(*losses)
    assert not streamed.shared["keys"][0].requires_grad


def test_a_step_leaves_no_mapping_behind() -> None:
    model = SharingModel()
    stream(model, rules=SHARED)
    gradients(model, steps=1)
    gc.collect()
    gc.disable()
    try:
        loss = model(torch.ones(4, WIDTH))
        left = weakref.ref(model.shared), weakref.ref(model.shared["keys"][0])
        del loss, model.shared
        assert [reference() for reference in left] == [None, None]
    finally:
        gc.enable()


def test_side_gradients_are_named_and_can_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[list[Place]] = []

    def cut(visit: block_function.Visit, found: list[Tensor | None]) -> list[None]:
        places.append(visit.call.places(visit.streamed.forward)[1:])
        return [None for _ in found]

    resident, streamed = gradients(ToyModel(), steps=1), ToyModel()
    stream(streamed)
    sharing = SharingModel()
    stream(sharing, rules=SHARED)
    monkeypatch.setattr(block_function, "side_gradients", cut)
    torch.manual_seed(3)
    loss = streamed(torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH))
    loss.backward()
    assert same_bits(loss.detach(), resident[0])
    assert streamed.first.grad is None
    weights = [layer.adapter.weight.grad for layer in streamed.layers]
    same = [same_bits(w, r) for w, r in zip(weights, resident[2::2], strict=True)]
    assert same == [False] * 5 + [True]
    assert places == [[Place("side")]] * 6
    places.clear()
    gradients(sharing, steps=1)
    keys = [Place("shared", in_mapping=True, key="keys")] * 2
    assert places[0] == [*keys, Place("shared", in_mapping=True, key="stream")]
    assert places[-1] == []
