"""A step that runs out of memory half way goes on from there, or is made again: same bits."""

from __future__ import annotations

import weakref
from unittest import mock

import pytest
import torch

from poros.errors import PorosOOMError
from poros.measure.fingerprint import same_bits
from poros.streaming.shortage import Shortage, is_shortage, shortage_of
from poros.training import optimizer as optimizer_module
from poros.training import rollback
from poros.training.host_adamw import HostAdamW
from poros.training.optimizer import MOMENTS as KINDS
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.host_runs import (
    ADAPTERS,
    MOMENTS,
    STOCK,
    assert_equal,
    observed,
    open_run,
)
from tests.engine.training.tiny_run import CPU

PLANS = pytest.mark.parametrize(
    "plan", [STOCK, MOMENTS, ADAPTERS], ids=["resident", "moments", "adapters"]
)
PART_BYTES = 4096
"""Small enough that the tiny adapters' weights are stepped in several parts."""


@pytest.fixture(autouse=True)
def small_parts():
    with (
        mock.patch.object(optimizer_module, "PART_BYTES", PART_BYTES),
        mock.patch.object(rollback, "may_run_out", return_value=True),  # though it is the CPU
    ):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("three"), num_hidden_layers=3)


@pytest.fixture(scope="module")
def stock(folder):
    with mock.patch.object(optimizer_module, "PART_BYTES", 1 << 40):
        return observed(folder, STOCK)


def values(run):
    """All that a step changes, as it is now."""
    run.optimizer.settle()
    found = {name: weight.detach().clone() for name, weight in run.params}
    for name, weight in run.params:
        for kind in ("step", *KINDS) if weight in run.optimizer.state else ():
            found[f"{kind}.{name}"] = run.optimizer.state[weight][kind].clone()
    return found


class FailingOnce:
    """The n-th call runs out of memory, after Adam has changed weights and first moments."""

    def __init__(self, number: int) -> None:
        self.number, self.num_calls, self.own = number, 0, torch._foreach_sqrt

    def __call__(self, tensors):
        self.num_calls += 1
        if self.num_calls == self.number:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0")
        return self.own(tensors)

    def planted(self):
        return mock.patch.object(torch, "_foreach_sqrt", self)


@PLANS
@pytest.mark.parametrize(("step", "number"), [(0, 1), (1, 2)])
def test_a_step_goes_on_where_its_memory_ended(folder, stock, plan, step, number):
    run, shortages = open_run(folder, plan), []
    for k in range(3):
        with FailingOnce(number if k == step else 0).planted():
            run.step(k, make_room=shortages.append)
    assert [(s.phase, s.asked_bytes) for s in shortages] == [("step", 3 << 29)]
    assert_equal(stock, run.seen)


@PLANS
@pytest.mark.parametrize("step", [0, 1])
def test_what_was_not_stepped_is_as_it_was(folder, plan, step):
    run = open_run(folder, plan)
    for k in range(step):
        run.step(k)
    before = values(run)
    with FailingOnce(1).planted(), pytest.raises(torch.OutOfMemoryError):
        run.step(step)
    after = values(run)
    assert before.keys() <= after.keys()
    assert all(same_bits(before[name], after[name]) for name in before)
    assert not any(after[name].any() for name in after.keys() - before.keys())


@PLANS
@pytest.mark.parametrize("number", [2, 3])  # of forward and recompute of two micro-batches
def test_a_pass_that_ran_out_is_made_again(folder, stock, plan, number):
    run, calls, shortages = open_run(folder, plan), [], []

    def fail(*_):
        calls.append(1)
        if len(calls) == 4 + number:  # in step 1
            raise torch.OutOfMemoryError("CUDA out of memory.")

    run.layers[1].mlp.register_forward_pre_hook(fail)
    for k in range(3):
        run.step(k, make_room=shortages.append)
    assert [s.phase for s in shortages] == [["backward", "forward"][number % 2]]
    assert_equal(stock, run.seen)


@PLANS
def test_a_norm_that_ran_out_is_taken_again(folder, stock, plan):
    run, shortages = open_run(folder, plan), []
    norm, calls = HostAdamW.total_norm, []

    def failing(optimizer, params):
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError
        return norm(optimizer, params)

    with mock.patch.object(HostAdamW, "total_norm", failing):
        for k in range(3):
            run.step(k, make_room=shortages.append)
    assert [s.phase for s in shortages] == ["norm"]
    assert_equal(stock, run.seen)


def test_where_no_room_can_be_made_the_error_is_told_once(folder):
    run, told = open_run(folder, STOCK), []

    def refuse(shortage: Shortage) -> None:
        told.append(shortage)
        raise PorosOOMError("no")

    with FailingOnce(1).planted(), pytest.raises(PorosOOMError, match="no"):
        run.step(0, make_room=refuse)
    assert len(told) == 1


def test_the_failed_pass_is_held_by_nobody(folder):
    run, held = open_run(folder, STOCK), []

    class Witness:
        pass

    def fail(*_):
        witness = Witness()
        held.append(weakref.ref(witness))
        if len(held) == 1:
            error = torch.OutOfMemoryError("full")
            error.frame_and_error_hold_each_other = (error, witness)
            raise error

    run.layers[1].mlp.register_forward_pre_hook(fail)
    alive = []
    run.step(0, make_room=lambda _: alive.append(held[0]()))
    assert alive == [None]


def test_only_a_full_device_is_a_shortage():
    full = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 3 GiB"
    )
    found = shortage_of(full, phase="forward", device=CPU)
    assert (found.reason, found.asked_bytes) == ("CUDA out of memory", 20 << 20)
    assert is_shortage(full)
    assert is_shortage(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x"))
    assert not is_shortage(RuntimeError("shapes do not fit"))
    assert not is_shortage(MemoryError())
