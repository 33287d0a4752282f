"""The mutants where copies come as late as CUDA may bring them, and backward has its own thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import Tensor

from poros.measure import mutant_bench, mutants
from poros.measure import mutant_patches as patches
from poros.measure.mutants import MUTANTS, run_mutants
from poros.measure.report import mutants_line
from poros.streaming import block_manager
from poros.streaming.device_slots import Slot

pytestmark = pytest.mark.timeout(900)

OF_SLOTS = [
    mutant
    for mutant in MUTANTS
    if any(word in mutant.name for word in ("slot", "neighbour's", "resident", "swapped"))
]


class LateLane:
    """Copies take place when somebody waits for them, and not before."""

    def __init__(self) -> None:
        self._late: dict[int, tuple[Slot, Tensor]] = {}

    def keep(self, slot: Slot) -> None:
        """Whoever holds a slot here keeps its memory."""

    def copy(self, slot: Slot, host: Tensor) -> None:
        self._late[id(slot)] = (slot, host)

    def wait(self, slot: Slot) -> None:
        if id(slot) in self._late:
            slot, host = self._late.pop(id(slot))
            slot.buffer[: host.numel()].copy_(host)

    def release(self, slot: Slot) -> None:
        assert id(slot) not in self._late, "released before it arrived"

    def take_wait_s(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def found(tiny_plan):
    backward = Tensor.backward

    def in_a_thread(loss: Tensor) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(backward, loss).result()

    with (
        mock.patch.object(block_manager, "make_lane", lambda device: LateLane()),  # noqa: PT008  # one each
        mock.patch.object(Tensor, "backward", in_a_thread),
    ):
        return {record["name"]: record for record in run_mutants(tiny_plan, chosen=OF_SLOTS)}


@pytest.mark.parametrize("name", [mutant.name for mutant in OF_SLOTS])
def test_a_mutant_of_the_slots_is_red_where_predicted_though_copies_come_late(found, name):
    assert found[name]["ok"], found[name]


def test_a_step_made_again_after_a_failed_copy_changes_nothing_though_copies_come_late(found):
    assert found["(control) a step made again after a copy failed"]["ok"]


def test_the_resident_base_lies_where_the_run_computes():
    pointed: list[Tensor | None] = []
    block = SimpleNamespace(host=torch.ones(4, dtype=torch.uint8), point_at=pointed.append)
    base = SimpleNamespace(blocks=[block])
    bench = SimpleNamespace(streamed=SimpleNamespace(base=base, device=torch.device("meta")))
    with patches.resident_base(bench):
        block_manager.BlockManager.bind(SimpleNamespace(_blocks=[block]), 0)
    assert [tensor if tensor is None else tensor.device.type for tensor in pointed] == [
        "meta",
        None,
    ]


def test_a_mutant_that_breaks_the_run_is_not_red_and_hides_no_other():
    def run(setting):
        raise RuntimeError("two devices\nand a long explanation")

    bench = SimpleNamespace(run=run)
    mutant = mutant_bench.Mutant("m", patches.nothing)
    record = mutant_bench.try_mutant(bench, mutant, mutant_bench.ArmRecord("c"))
    assert record["ok"] is False
    assert record["found"] == "RuntimeError: two devices"


def test_a_mutant_that_nothing_can_show_says_why_and_counts_apart():
    cell = SimpleNamespace(compile=False, attn_implementation="eager")
    plan = SimpleNamespace(cells=[cell])
    bench = SimpleNamespace(cell=cell, has_biases=False, plan=plan, num_layers=4)
    left_out = [mutant for mutant in MUTANTS if mutant.left_out(bench)]
    records = mutants._tried(bench, left_out, {})
    assert {record["found"] for record in records} == {
        "not applicable: the linears have no biases",
        "not applicable: no cell of this run compiles its layers",
        "not applicable: eager attention has no other kernels",
        "not applicable: the middle one of so few blocks is not copied on the way back",
    }
    assert {record["ok"] for record in records} == {None}
    bench.num_layers = 5
    assert not mutants.no_copy_back(bench)
    red = {"name": "m", "ok": True, "found": "step 1, loss.0"}
    control = {"name": "(control) c", "ok": True, "found": "no difference"}
    assert mutants_line([red, control, *records]) == (
        f"1 of 1 mutants red where predicted, 1 of 1 controls equal, {len(left_out)} not applicable"
    )
