"""Uses beside the plain loop: each gives the resident result, or an error, never other numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from poros.measure.fingerprint import same_bits
from poros.streaming.device_slots import HostLane
from tests.engine.streaming.toy import WIDTH, ToyLayer, ToyModel, gradients, stream


def some_hidden() -> Tensor:
    return torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH)


def both(use: Callable[[ToyModel], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    resident, streamed = ToyModel(), ToyModel()
    stream(streamed)
    return use(resident), use(streamed)


def trained(model: ToyModel) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_evaluations_between_forward_and_backward_change_nothing() -> None:
    def use(model: ToyModel) -> list[Tensor]:
        torch.manual_seed(3)
        first, second = model(some_hidden()), model(2 * some_hidden())
        model.eval()
        with torch.no_grad():
            held_out = model(3 * some_hidden())
        model.train()
        torch.manual_seed(99)
        (first + second).backward(retain_graph=True)
        second.backward()
        return [first.detach(), held_out, *trained(model), torch.rand(2)]

    resident, streamed = both(use)
    assert len(resident) == len(streamed) == 2 + 13 + 1
    assert all(map(same_bits, resident, streamed))


def test_a_first_pass_in_inference_mode_does_not_spoil_training() -> None:
    def use(model: ToyModel) -> list[Tensor]:
        with torch.inference_mode():
            model(some_hidden())
        return gradients(model)

    resident, streamed = both(use)
    assert all(map(same_bits, resident, streamed))


class TwiceUsed(ToyLayer):
    """Its adapter's weight hangs in two modules."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second.weight = self.adapter.weight

    def forward(
        self, hidden: Tensor, *, side: Tensor, memory: object = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        hidden, extra = super().forward(hidden, side=side, memory=memory)
        return hidden + self.second(hidden), extra


def test_an_adapter_under_two_names_gets_both_gradients() -> None:
    def use(model: ToyModel) -> list[Tensor]:
        return gradients(model)

    resident, streamed = ToyModel(), ToyModel()
    for model in (resident, streamed):
        torch.manual_seed(1)
        model.layers = nn.ModuleList(TwiceUsed(i) for i in range(6))
    stream(streamed)
    assert all(map(same_bits, use(resident), use(streamed)))


@pytest.mark.parametrize("at_layer", [0, 3])
def test_a_layer_that_writes_into_its_input_is_refused(at_layer: int) -> None:
    model = ToyModel()

    def write(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        args[0].mul_(2)

    model.layers[at_layer].dropout.register_forward_pre_hook(write)
    stream(model)
    with pytest.raises(RuntimeError, match=r"wrote into an input|in-place operation"):
        model(some_hidden())


def test_an_adapter_written_between_forward_and_backward_is_noticed() -> None:
    model = ToyModel()
    stream(model)
    loss = model(some_hidden())
    with torch.no_grad():
        model.layers[2].adapter.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_adapter_switched_off_between_forward_and_backward_is_noticed() -> None:
    model = ToyModel()
    stream(model)
    loss = model(some_hidden())
    model.layers[2].adapter.requires_grad_(False)
    with pytest.raises(RuntimeError, match="switched on or off"):
        loss.backward()


def test_a_second_derivative_is_refused() -> None:
    model, hidden = ToyModel(), some_hidden().requires_grad_()
    stream(model)
    (gradient,) = torch.autograd.grad(model(hidden), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        (gradient * hidden).sum().backward()


def test_a_copy_that_was_interrupted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ToyModel()
    stream(model)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HostLane, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(some_hidden())
    assert all(map(same_bits, gradients(model), gradients(ToyModel())))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_layer_that_fails_once_leaves_nothing_behind(direction: str) -> None:
    model, failing = ToyModel(), True

    def fail(*_: object) -> None:
        if failing:
            raise ArithmeticError

    handle = None
    if direction == "forward":
        handle = model.layers[3].register_forward_pre_hook(fail)
    stream(model)
    if direction == "forward":
        with pytest.raises(ArithmeticError):
            model(some_hidden())
    else:
        loss = model(some_hidden())
        handle = model.layers[3].dropout.register_forward_pre_hook(fail)
        with pytest.raises(ArithmeticError):
            loss.backward()
    assert handle is not None
    failing = False
    model.zero_grad()
    assert all(map(same_bits, gradients(model), gradients(ToyModel())))


def test_the_views_into_a_dropped_rings_slots_go_with_it() -> None:
    model = ToyModel()
    manager, attachment = stream(model)
    gradients(model, steps=1)
    manager.forget()
    blocks = manager._blocks
    assert all(block._views for block in blocks)
    attachment.detach()
    del manager, attachment
    gc.collect()
    assert not any(block._views for block in blocks)
