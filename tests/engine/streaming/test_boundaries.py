"""Hidden states that wait on the host: the resident bits, and memory that is free meanwhile."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor

from poros.measure.fingerprint import same_bits
from poros.streaming import block_function
from poros.streaming import boundaries as module
from poros.streaming.boundaries import Boundaries
from tests.engine.streaming.late_lane import LateReturnLane
from tests.engine.streaming.toy import CPU, WIDTH, ToyModel, gradients, stream

NUM_LAYERS = 6


class LateBackLane:
    """Copies to the host happen when somebody waits for them, if their source is still there."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Tensor, Tensor]] = []

    def store(self, source: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
        self.waiting.append((source, host))
        return self.waiting[-1]

    def wait(self, ticket: tuple[Tensor, Tensor]) -> None:
        while self.waiting:
            source, host = self.waiting.pop(0)
            host.copy_(source)
            if source is ticket[0]:
                break


def some_hidden(rows: int = 4) -> Tensor:
    return torch.linspace(-1, 1, rows * WIDTH).view(rows, WIDTH)


def trained(model: ToyModel) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def hosted(**settings) -> tuple[ToyModel, Boundaries]:
    model = ToyModel()
    _, attachment = stream(model, boundaries=True, **settings)
    assert attachment.boundaries is not None
    return model, attachment.boundaries


@pytest.mark.parametrize("layers_per_block", [1, 2])
@pytest.mark.parametrize("num_slots", [2, 3])
def test_gradients_are_the_resident_ones(num_slots, layers_per_block) -> None:
    resident = gradients(ToyModel())
    model, boundaries = hosted(num_slots=num_slots, layers_per_block=layers_per_block)
    found = gradients(model)
    assert len(found) == len(resident) == 2 * 14
    assert all(map(same_bits, found, resident))
    assert boundaries.num_stores == boundaries.num_fetches == 2 * NUM_LAYERS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_bytes_come_back_with_type_shape_and_strides(dtype) -> None:
    _, boundaries = hosted()
    hidden = torch.randn(1, 3, 5).to(dtype).as_strided((1, 3, 5), (7, 5, 1))
    assert hidden.is_contiguous()
    with boundaries.leaving(hidden) as boundary:
        assert boundary is not None
    back = boundary.arrive()
    assert back.data_ptr() != hidden.data_ptr()
    assert back.stride() == hidden.stride()
    assert same_bits(back, hidden)


def test_copies_as_late_as_the_device_may_make_them_give_the_resident_gradients() -> None:
    """And kernels that overwrite a boundary's memory as soon as its layer is done."""
    resident = gradients(ToyModel())
    model, boundaries = hosted()
    boundaries.lane, boundaries._back = LateReturnLane(), LateBackLane()
    for layer in model.layers:
        layer.forward = _overwriting(layer.forward)
    assert all(map(same_bits, gradients(model), resident))
    assert boundaries.num_stores == 2 * NUM_LAYERS


def _overwriting(forward):
    def then_overwrite(hidden: Tensor, **kwargs: object) -> object:
        mine = hidden.clone()
        output = forward(mine, **kwargs)
        mine.detach().fill_(float("nan"))
        return output

    return then_overwrite


@pytest.mark.parametrize("on_host", [True, False])
def test_no_hidden_states_are_alive_but_those_at_work(on_host) -> None:
    model = ToyModel()
    stream(model, boundaries=on_host)
    inputs: list[weakref.ref[Tensor]] = []
    num_alive: list[int] = []

    def look(layer: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(weakref.ref(args[0].untyped_storage()))
        num_alive.append(sum(ref() is not None for ref in inputs))

    for layer in model.layers[1:]:  # the first one's input is the caller's
        layer.register_forward_pre_hook(look)
    loss = model(some_hidden())
    assert num_alive == ([1] * 5 if on_host else [1, 2, 3, 4, 5])
    assert sum(ref() is not None for ref in inputs) == (0 if on_host else 5)
    loss.backward()


def test_one_boundary_comes_ahead_and_leaves_after_its_backward(monkeypatch) -> None:
    model, boundaries = hosted()
    slots: list[weakref.ref[module.Slot]] = []
    bring = boundaries.bring

    def watched(boundary: module.Boundary) -> module.Slot:
        slot = bring(boundary)
        slots.append(weakref.ref(slot.buffer.untyped_storage()))
        return slot

    monkeypatch.setattr(boundaries, "bring", watched)
    present: list[tuple[int, int]] = []
    for layer in model.layers:
        layer.dropout.register_forward_pre_hook(
            lambda *_: present.append((len(slots), sum(ref() is not None for ref in slots)))
        )
    model(some_hidden()).backward()
    assert present[:NUM_LAYERS] == [(0, 0)] * NUM_LAYERS
    brought = [min(k + 2, NUM_LAYERS) for k in range(NUM_LAYERS)]
    assert present[NUM_LAYERS:] == [
        (n, 2 if k < NUM_LAYERS - 1 else 1) for k, n in enumerate(brought)
    ]
    gc.collect()
    assert sum(ref() is not None for ref in slots) == 0


def test_a_recomputed_layers_results_are_gone_before_its_gradients_are_made(monkeypatch) -> None:
    model, _ = hosted()
    loss = model(some_hidden())
    run, grad = block_function.Visit.run, torch.autograd.grad
    results: list[weakref.ref[Tensor]] = []
    num_alive: list[int] = []

    def watched(visit, leaves):
        found = run(visit, leaves)
        results.extend(weakref.ref(result.untyped_storage()) for result in found)
        return found

    def counted(*args, **kwargs):
        num_alive.append(sum(ref() is not None for ref in results))
        return grad(*args, **kwargs)

    monkeypatch.setattr(block_function.Visit, "run", watched)
    monkeypatch.setattr(torch.autograd, "grad", counted)
    loss.backward()
    assert len(results) == 2 * NUM_LAYERS
    assert num_alive == [0] * NUM_LAYERS


def test_buffers_are_reused_and_grow_with_a_longer_batch() -> None:
    model, boundaries = hosted()
    for rows, size in ((4, 4), (4, 4), (2, 4), (9, 9), (4, 9), (9, 9)):
        for _ in range(2):
            model(some_hidden(rows)).backward()
            assert boundaries.host_bytes == NUM_LAYERS * size * WIDTH * 4, rows
        assert len(boundaries._free) == NUM_LAYERS


def test_buffers_of_a_graph_that_is_dropped_are_free_again() -> None:
    model, boundaries = hosted()
    loss = model(some_hidden())
    assert len(boundaries._free) == 0
    del loss
    gc.collect()
    assert len(boundaries._free) == NUM_LAYERS
    assert boundaries.num_fetches == 0


def test_buffers_are_free_after_backward_though_the_loss_is_kept() -> None:
    model, boundaries = hosted()
    loss = model(some_hidden())
    loss.backward()
    assert len(boundaries._free) == NUM_LAYERS
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()


def test_a_graph_that_is_retained_can_be_differentiated_again() -> None:
    def use(model: ToyModel) -> list[Tensor]:
        torch.manual_seed(3)
        first, second = model(some_hidden()), model(2 * some_hidden())
        (first + second).backward(retain_graph=True)
        second.backward()
        first.backward()
        return [first.detach(), *trained(model)]

    model, boundaries = hosted()
    assert all(map(same_bits, use(model), use(ToyModel())))
    assert len(boundaries._free) == 2 * NUM_LAYERS


def test_a_forward_that_fails_gives_its_buffers_back() -> None:
    model, boundaries = hosted()
    back = boundaries._back = LateBackLane()
    handle = model.layers[3].dropout.register_forward_pre_hook(_failing)
    with pytest.raises(ZeroDivisionError):
        model(some_hidden())
    assert back.waiting == [], "the copy was not waited for"
    handle.remove()
    gc.collect()
    assert len(boundaries._free) == 4


def _failing(*_: object) -> None:
    raise ZeroDivisionError


def test_a_part_of_a_larger_tensor_stays() -> None:
    model, boundaries = hosted()
    whole = torch.randn(8, WIDTH)
    resident = ToyModel()
    for given in (model, resident):
        torch.manual_seed(3)
        given(whole[4:]).backward()
    assert boundaries.num_stores == NUM_LAYERS - 1
    assert all(map(same_bits, trained(model), trained(resident)))


def test_hooks_on_saved_tensors_are_refused_and_not_misled() -> None:
    model, _ = hosted()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = model(some_hidden())
    with pytest.raises(RuntimeError, match="hooks on saved tensors"):
        loss.backward()


def test_too_little_memory_for_a_buffer_is_a_memory_error(monkeypatch) -> None:
    model, _ = hosted()

    def refuse(*_: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(module, "HostBuffer", refuse)
    with pytest.raises(MemoryError, match="hidden states"):
        model(some_hidden())


def test_an_evaluation_stores_nothing() -> None:
    model, boundaries = hosted()
    with torch.no_grad():
        model(some_hidden())
    assert boundaries.num_stores == boundaries.host_bytes == 0
    assert boundaries._device == CPU
