"""Moments and adapters on the host change no bit, whatever the copies' timing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from torch import Tensor

from poros.errors import PorosNonFiniteError
from poros.measure.fingerprint import same_bits
from poros.training import host_adamw
from poros.training.evaluate import evaluate
from poros.training.host_adamw import HostAdamW, by_block
from tests.engine.loading.tiny_models import write_model
from tests.engine.streaming.late_lane import LateReturnLane
from tests.engine.training.host_runs import (
    ADAPTERS,
    MOMENTS,
    STOCK,
    assert_equal,
    observed,
    open_run,
)
from tests.engine.training.stepped_groups import stepped
from tests.engine.training.tiny_run import CPU, tiny_batches

NUM_LAYERS = 5
SETTINGS = [
    {},
    {"layers_per_block": 2, "dtype": torch.bfloat16},
    {"layers_per_block": 5},
    {"autocast": True, "targets": ["q_proj", "down_proj"]},
]
IDS = ["plain", "blocks of 2, bf16", "one block", "autocast, two linears"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny llama of more layers than the ring has slots."""
    return write_model(tmp_path_factory.mktemp("five"), num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def stock(folder):
    """What stock's steps observe, by the place of their settings."""
    return [observed(folder, STOCK, **settings) for settings in SETTINGS]


@pytest.fixture
def late_lanes():
    backward = Tensor.backward

    def in_a_thread(loss: Tensor) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(backward, loss).result()

    with (
        mock.patch.object(host_adamw, "make_return_lane", lambda _: LateReturnLane()),  # noqa: PT008  # one each
        mock.patch.object(Tensor, "backward", in_a_thread),
    ):
        yield


@pytest.mark.parametrize("plan", [MOMENTS, ADAPTERS], ids=["moments", "adapters"])
@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=IDS)
def test_three_steps_have_the_bits_of_stock(folder, stock, plan, number):
    assert_equal(stock[number], observed(folder, plan, **SETTINGS[number]))


@pytest.mark.parametrize("plan", [MOMENTS, ADAPTERS], ids=["moments", "adapters"])
@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=IDS)
@pytest.mark.usefixtures("late_lanes")
def test_three_steps_have_the_bits_of_stock_though_bytes_move_late(folder, stock, plan, number):
    assert_equal(stock[number], observed(folder, plan, **SETTINGS[number]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensors_bits_do_not_depend_on_who_else_isstepped(dtype):
    sizes = [(3, 7), (64, 5), (1,), (130, 33)]
    together = stepped([sizes], dtype)
    assert len(together) == 4 * len(sizes)
    alone = stepped([[size] for size in sizes], dtype)
    pairs = stepped([sizes[:2], sizes[2:]], dtype)
    assert all(map(same_bits, together, alone))
    assert all(map(same_bits, together, pairs))


def test_between_steps_weights_and_moments_lie_whole_on_the_host(folder):
    run = open_run(folder, ADAPTERS)
    run.step(0)
    optimizer = run.optimizer
    assert isinstance(optimizer, HostAdamW)
    optimizer.travelling.weights.forget()
    for _, weight in run.params:
        assert weight.grad is None
        assert _lies_in(weight, optimizer.travelling.host_blocks[0])
        state = optimizer.state[weight]
        assert all(_lies_in(state[kind], optimizer.moments) for kind in ("exp_avg", "exp_avg_sq"))


def _lies_in(tensor: Tensor, blocks) -> bool:
    return any(
        block.host.data_ptr() <= tensor.data_ptr() < block.host.data_ptr() + block.num_bytes
        for block in blocks
    )


def test_a_layers_weights_come_from_a_slot(folder):
    run = open_run(folder, ADAPTERS)
    module = run.layers[3].self_attn.q_proj.lora_A["default"]
    blocks, found = run.optimizer.travelling.host_blocks[0], []
    module.register_forward_pre_hook(lambda *_: found.append(_lies_in(module.weight, blocks)))
    run.step(0)
    assert found == [False] * 4  # forward and recompute of two micro-batches


def test_an_evaluation_reads_the_stepped_weights(folder):
    losses = []
    for plan in (STOCK, ADAPTERS):
        run = open_run(folder, plan)
        run.step(0)
        run.step(1)
        losses.append(evaluate(run.model, tiny_batches().next_step(), device=CPU).loss)
    assert losses[0] == losses[1]


@pytest.mark.usefixtures("late_lanes")
def test_a_step_that_broke_off_is_made_again_with_the_same_bits(folder, stock):
    run = open_run(folder, ADAPTERS)
    run.step(0)
    state = torch.get_rng_state()
    micro_batches = next(run.batches)
    run.batches = iter([micro_batches, micro_batches])
    layer, calls = run.layers[1].self_attn, []

    def fail(*_) -> None:
        calls.append(1)
        if len(calls) == 4:  # the second micro-batch's recompute
            raise torch.OutOfMemoryError

    handle = layer.register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        run.step(1)
    handle.remove()
    run.optimizer.zero_grad(set_to_none=True)
    torch.set_rng_state(state)
    run.step(1)
    assert_equal({k: v for k, v in stock[0].items() if not k.startswith("2.")}, run.seen)


def test_nothing_is_written_when_a_gradient_is_not_finite(folder):
    run = open_run(folder, ADAPTERS)
    run.step(0)
    before = [weight.detach().clone() for _, weight in run.params]
    moments = [block.host.clone() for block in run.optimizer.moments]
    name, _ = run.params[9]
    add = run.optimizer.travelling._add

    def spoil(gradients):
        spoilt = {w: g * float("inf") if w is run.params[9][1] else g for w, g in gradients.items()}
        add(spoilt)

    with (
        mock.patch.object(run.optimizer.travelling, "_add", spoil),
        pytest.raises(PorosNonFiniteError, match=f"the gradient of {name} is not finite"),
    ):
        run.step(1)
    assert all(same_bits(a, w.detach()) for a, (_, w) in zip(before, run.params, strict=True))
    assert all(same_bits(a, b.host) for a, b in zip(moments, run.optimizer.moments, strict=True))


def test_weights_of_no_block_or_of_two_stay_on_the_device():
    first, second, outside = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))
    shared = torch.nn.Linear(2, 2, bias=False)
    layers = [torch.nn.Sequential(first, shared), torch.nn.Sequential(second, shared)]
    params = [(n, m.weight) for n, m in zip("abcd", (first, outside, shared, second), strict=True)]
    groups, others = by_block(params, layers, layers_per_block=1)
    assert [[name for name, _ in group] for group in groups] == [["a"], ["d"]]
    assert [name for name, _ in others] == ["b", "c"]
    assert by_block(params, layers, layers_per_block=2)[1] == [params[1]]


@pytest.mark.parametrize("plan", [MOMENTS, ADAPTERS], ids=["moments", "adapters"])
def test_holdings_say_what_lies_where(folder, plan):
    run = open_run(folder, plan)
    weights_bytes = sum(w.numel() * w.element_size() for _, w in run.params)
    resident = {h.name: h for h in open_run(folder, STOCK).optimizer.holdings(run.params)}
    assert [h.device_bytes for h in resident.values()] == [k * weights_bytes for k in (1, 1, 2)]
    found = {h.name: h for h in run.optimizer.holdings(run.params)}
    assert found.keys() == resident.keys()
    on_host = {name for name, holding in found.items() if holding.host_bytes}
    assert on_host == ({"moments"} if plan is MOMENTS else set(found))
    for name in on_host:
        assert found[name].host_bytes >= resident[name].device_bytes
        assert found[name].device_bytes == 0
        assert found[name].visiting_bytes == 2 * found[name].host_bytes // NUM_LAYERS


def test_bytes_over_the_link_are_counted(folder):
    run = open_run(folder, MOMENTS)
    run.step(0)
    on_host = sum(block.num_bytes for block in run.optimizer.moments)
    assert run.optimizer.moved_bytes == 2 * on_host
    assert open_run(folder, STOCK).optimizer.moved_bytes == 0
