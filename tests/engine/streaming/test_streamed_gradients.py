"""Streamed gradients are the resident ones, byte for byte."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

from poros.measure.fingerprint import same_bits
from tests.engine.streaming.toy import ToyCache, ToyLayer, ToyModel, gradients, stream

NUM_ITEMS = 2 * (1 + 1 + 6 * 2)  # two steps of: loss, first, and each layer's adapter pair


def same(left: list[Tensor], right: list[Tensor]) -> list[bool]:
    assert len(left) == len(right) == NUM_ITEMS
    return [same_bits(a, b) for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("poison", [False, True])
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("num_slots", [2, 3, 6])
@pytest.mark.parametrize("layers_per_block", [1, 2, 4, 6])
def test_any_ring_gives_the_resident_gradients(
    num_slots: int, layers_per_block: int, prefetch: bool, poison: bool
) -> None:
    resident = gradients(ToyModel())
    model = ToyModel()
    stream(
        model,
        num_slots=num_slots,
        layers_per_block=layers_per_block,
        prefetch=prefetch,
        poison=poison,
    )
    assert all(same(gradients(model), resident))


def test_without_restored_random_state_gradients_differ_and_the_loss_does_not() -> None:
    resident = gradients(ToyModel())
    model = ToyModel()
    stream(model, preserve_rng=False)
    equal = same(gradients(model), resident)
    assert equal[0]
    assert not all(equal)


def test_a_cache_is_written_by_no_layer_while_gradients_are_on() -> None:
    model, memory = ToyModel(), ToyCache()
    stream(model)
    gradients(model, memory=memory)
    assert memory.written == []
    with torch.no_grad():
        model(torch.ones(4, 8), memory=memory)
    assert memory.written == list(range(6))


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_the_recompute_is_under_the_forwards_autocast() -> None:
    def run(model: ToyModel) -> list[Tensor]:
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(4, 8))
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    resident, streamed = ToyModel(), ToyModel()
    stream(streamed)
    left, right = run(resident), run(streamed)
    assert len(left) == len(right) == NUM_ITEMS // 2
    assert all(map(same_bits, left, right))


class WithoutNorm(ToyLayer):
    """Its input goes into several matrix products as it is, each of which autocast casts."""

    def forward(
        self, hidden: Tensor, *, side: Tensor, memory: object = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        inner = (hidden @ self.weight) * (hidden @ self.weight.T) + hidden @ self.weight.abs()
        hidden, extra = super().forward(hidden, side=side, memory=memory)
        return hidden + inner, extra


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_an_input_that_autocast_casts_for_several_uses_has_the_resident_gradients() -> None:
    def run(model: ToyModel) -> list[Tensor]:
        torch.manual_seed(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.linspace(-1, 1, 32).view(4, 8))
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    resident, streamed = ToyModel(), ToyModel()
    for model in (resident, streamed):
        torch.manual_seed(1)
        model.layers = nn.ModuleList(WithoutNorm(i) for i in range(6))
    stream(streamed)
    left, right = run(resident), run(streamed)
    assert len(left) == len(right) == NUM_ITEMS // 2
    assert all(map(same_bits, left, right))


def test_backward_in_another_thread_and_in_eval_mode_uses_the_forwards_flags() -> None:
    def run(model: ToyModel) -> list[Tensor]:
        torch.manual_seed(3)
        loss = model(torch.ones(4, 8))
        model.eval()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    resident, streamed = ToyModel(), ToyModel()
    stream(streamed)
    assert all(map(same_bits, run(resident), run(streamed)))
    assert not any(module.training for module in streamed.modules())


def test_a_hook_on_an_adapter_sees_its_gradient_once() -> None:
    def run(model: ToyModel) -> list[Tensor]:
        model.layers[2].adapter.weight.register_hook(lambda grad: grad * 3)
        return gradients(model)

    resident, streamed = ToyModel(), ToyModel()
    stream(streamed)
    assert all(same(run(streamed), run(resident)))


def test_autograd_grad_leaves_the_adapters_alone() -> None:
    model = ToyModel()
    stream(model)
    torch.manual_seed(3)
    loss = model(torch.linspace(-1, 1, 32).view(4, 8))
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, trained)
    assert all(p.grad is None for p in trained)
    assert all(map(same_bits, found, gradients(ToyModel(), steps=1)[1:]))


def test_gradients_reach_the_models_input() -> None:
    def run(model: ToyModel) -> Tensor:
        torch.manual_seed(3)
        hidden = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
        model(hidden).backward()
        assert hidden.grad is not None
        return hidden.grad

    resident, streamed = ToyModel(), ToyModel()
    stream(streamed)
    assert same_bits(run(resident), run(streamed))


def test_detached_layers_compute_as_before() -> None:
    model = ToyModel()
    manager, attachment = stream(model)
    attachment.detach()
    assert all("forward" not in layer.__dict__ for layer in model.layers)
    assert manager.num_copies == 0


def test_a_forward_that_hung_on_a_layer_hangs_there_again_after_detaching() -> None:
    model = ToyModel()
    own = model.layers[1].forward
    model.layers[1].forward = own
    _, attachment = stream(model)
    assert model.layers[1].forward is not own
    attachment.detach()
    assert model.layers[1].__dict__["forward"] is own
    assert "forward" not in model.layers[0].__dict__


def test_a_graph_that_outlives_its_slot_fails_by_the_placeholders_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ordinary kernels at least fail; packed weights would not (the gate has that mutant)."""

    def keep_graph(streamed, drop, args, kwargs):  # type: ignore[no-untyped-def]  # a mutant
        streamed.manager.bind(streamed.block_index, direction=1)
        return streamed.forward(*args, **kwargs)

    monkeypatch.setattr("poros.streaming.attach.call_streamed", keep_graph)
    model = ToyModel()
    stream(model)
    with pytest.raises(RuntimeError, match="size of tensor"):
        gradients(model)
