import dataclasses
import gzip
import json

import pytest

from poros.measure.compare import Verdict
from poros.measure.gate import judge_all, num_adapter_tensors, run_gate, write_artifacts
from poros.measure.records import ArmRecord
from poros.measure.request import Request
from poros.measure.shapes import SHAPES

pytestmark = pytest.mark.timeout(900)  # four processes that import torch


@pytest.fixture(scope="module")
def outcome(tiny_llama, tmp_path_factory):
    """The whole gate on a tiny model under two names: every arm a process of its own."""
    levels = {
        "model": ("llama", "phi3"), "block_size": (1, 2), "batch_form": ("padding",),
        "dropout": (0.05,), "accumulation": (2,), "autocast": (None,), "use_cache": (True,),
        "num_slots": (2,), "adapter_dtype": ("float32",), "compile": (False,),
    }  # fmt: skip
    request = Request(
        target="demo",
        folder=str(tmp_path_factory.mktemp("gate")),
        model=str(tiny_llama),
        num_steps=2,
        levels=levels,
    )
    return run_gate(request, mutants=False, say=print)


def test_every_claim_about_every_cell_passes(outcome):
    assert [job.name for job in outcome.jobs.values() if job.exit_code] == []
    assert {verdict.word for verdict in outcome.verdicts} == {"PASS"}
    assert {verdict.claim for verdict in outcome.verdicts} == {"A", "B-fwd", "B-bwd", "C", "D"}
    assert len(outcome.verdicts) == 3 * len(outcome.plan.cells) + 2
    assert outcome.passed


def test_every_adapter_tensor_was_compared(outcome):
    by_name = {cell.name: num_adapter_tensors(outcome.plan, cell) for cell in outcome.plan.cells}
    assert set(by_name.values()) == {6 * 7 * 2, 6 * 4 * 2}
    for verdict in outcome.verdicts:
        if verdict.claim == "D":
            assert verdict.num_compared == 2 * 3 * by_name[verdict.cell]


def test_an_arm_that_is_missing_is_refused(outcome):
    arms = dict(outcome.arms) | {"streamed": {}}
    words = {v.word for v in judge_all(outcome.plan, arms) if v.claim != "A"}
    assert words == {"REFUSED"}


def test_one_other_digest_fails_the_gate(outcome):
    cell = outcome.plan.cells[0].name
    arm = outcome.arms["streamed"][cell]
    last = arm.steps[-1]
    item = next(name for name in last.digests if name.startswith("exp_avg_sq."))
    changed = dataclasses.replace(last, digests=last.digests | {item: "0" * 64})
    other = ArmRecord(cell, [*arm.steps[:-1], changed], arm.end)
    arms = dict(outcome.arms) | {"streamed": outcome.arms["streamed"] | {cell: other}}
    failed = [v for v in judge_all(outcome.plan, arms) if v.word == "FAIL" and v.claim == "D"]
    assert [(v.cell, v.first_difference.step, v.first_difference.item) for v in failed] == [
        (cell, last.step, item)
    ]


def test_a_surviving_mutant_and_no_mutants_at_all_fail_the_gate(outcome):
    assert not dataclasses.replace(outcome, mutants=[{"name": "m", "ok": False}]).passed
    assert not dataclasses.replace(outcome, mutants=[]).passed
    assert dataclasses.replace(outcome, mutants=[{"name": "m", "ok": True}]).passed
    assert not dataclasses.replace(outcome, verdicts=[]).passed


def test_artifacts_hold_a_root_for_every_step_and_few_digests(outcome, tmp_path):
    write_artifacts(tmp_path, outcome, {"passed": True})
    assert json.loads((tmp_path / "gate.json").read_text()) == {"passed": True}
    with gzip.open(tmp_path / "hashes-streamed.jsonl.gz", "rt") as file:
        streamed = [json.loads(line) for line in file]
    with gzip.open(tmp_path / "hashes-reference.jsonl.gz", "rt") as file:
        reference = [json.loads(line) for line in file]
    assert [line["root"] for line in streamed] == [line["root"] for line in reference]
    assert not any("digests" in line for line in streamed)
    assert sum("digests" in line for line in reference) == 2 * len(outcome.plan.cells)


def test_a_refusal_is_not_a_pass():
    refused = Verdict("D", "c", "REFUSED", 0, 3)
    assert refused.as_dict()["word"] == "REFUSED"


def test_shapes_name_a_family_of_the_table():
    assert {config["model_type"] for config in SHAPES.values()} >= {"qwen2", "llama", "phi3"}
