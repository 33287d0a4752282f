import dataclasses
import gzip
import json

import pytest

from poros.measure import gate, gate_jobs, report
from poros.measure.arms import Ended
from poros.measure.compare import Verdict
from poros.measure.gate import (
    _request,
    forget_former,
    judge_all,
    num_adapter_tensors,
    run_gate,
    write_artifacts,
)
from poros.measure.records import ArmRecord
from poros.measure.request import Request
from poros.measure.shapes import SHAPES

pytestmark = pytest.mark.timeout(900)  # four processes that import torch


def ended(name, exit_code=0):
    return {name: Ended(name, exit_code, 1.0, "")}


@pytest.fixture(scope="module")
def request_(tiny_llama, tmp_path_factory):
    levels = {
        "model": ("llama", "phi3"), "block_size": (1, 2), "batch_form": ("padding",),
        "dropout": (0.05,), "accumulation": (2,), "autocast": (None,), "use_cache": (True,),
        "num_slots": (2,), "adapter_dtype": ("float32",), "compile": (False,),
    }  # fmt: skip
    return Request(
        target="demo",
        folder=str(tmp_path_factory.mktemp("gate")),
        model=str(tiny_llama),
        num_steps=2,
        levels=levels,
    )


@pytest.fixture(scope="module")
def outcome(request_):
    """The whole gate on a tiny model under two names: every arm a process of its own."""
    return run_gate(request_, mutants=False, say=print)


def test_every_claim_about_every_cell_passes(outcome):
    assert [job.name for job in outcome.jobs.values() if job.exit_code] == []
    assert {verdict.word for verdict in outcome.verdicts} == {"PASS"}
    assert {verdict.claim for verdict in outcome.verdicts} == {"A", "B-fwd", "B-bwd", "C", "D"}
    interrupted = [cell for cell in outcome.plan.cells if cell.resume_at is not None]
    assert any(cell.moments_on_host for cell in interrupted)
    assert len(outcome.verdicts) == 3 * len(outcome.plan.cells) + 1 + len(interrupted)
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
    red, not_applicable = {"name": "m", "ok": True}, {"name": "n", "ok": None}
    assert dataclasses.replace(outcome, mutants=[red, not_applicable]).passed
    assert not dataclasses.replace(outcome, mutants=[not_applicable]).passed
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


def test_an_arm_that_recorded_nothing_has_no_file_of_hashes(outcome, tmp_path):
    write_artifacts(tmp_path, outcome, {})
    assert not (tmp_path / "hashes-reference-default.jsonl.gz").exists()
    without = dataclasses.replace(outcome, arms=outcome.arms | {"resumed": {}})
    write_artifacts(tmp_path, without, {})
    assert {path.name for path in tmp_path.iterdir()} == {
        "gate.json", "hashes-reference.jsonl.gz", "hashes-reference-again.jsonl.gz",
        "hashes-streamed.jsonl.gz",
    }  # fmt: skip


@pytest.mark.parametrize("arm", ["reference", "reference-again", "streamed", "resumed", "mutants"])
def test_a_job_that_failed_fails_the_gate_whatever_it_wrote(outcome, arm):
    failed = dataclasses.replace(outcome, jobs=outcome.jobs | ended(arm, 1))
    assert failed.failed_jobs == [arm]
    assert not failed.passed


def test_cells_made_alone_stand_for_an_arm_that_failed(outcome):
    jobs = outcome.jobs | ended("streamed", 1)
    good, bad = ended("streamed.alone-00-llama"), ended("streamed.alone-01-phi3", 1)
    assert dataclasses.replace(outcome, jobs=jobs | good).passed
    assert not dataclasses.replace(outcome, jobs=jobs | good | bad).passed


def test_a_claim_that_was_not_made_is_no_pass(outcome):
    for claim in ("A", "B-fwd", "B-bwd", "C", "D"):
        verdicts = [verdict for verdict in outcome.verdicts if verdict.claim != claim]
        fewer = dataclasses.replace(outcome, verdicts=verdicts)
        assert fewer.not_claimed == [claim]
        assert not fewer.passed


def test_a_quick_gate_passes_and_says_what_it_does_not_claim(outcome):
    verdicts = [verdict for verdict in outcome.verdicts if verdict.claim not in ("A", "C")]
    plan = dataclasses.replace(outcome.plan, quick=True)
    quick = dataclasses.replace(outcome, verdicts=verdicts, plan=plan)
    assert quick.passed
    line = report.last_line(gate.record_of(quick))
    assert line.startswith("every claim PASS (--quick: A and C not claimed): 4 cells, ")


def test_claim_c_is_refused_where_no_cell_is_interrupted(outcome):
    cells = tuple(dataclasses.replace(cell, resume_at=None) for cell in outcome.plan.cells)
    plan = dataclasses.replace(outcome.plan, cells=cells)
    verdicts = judge_all(plan, outcome.arms)
    assert [(v.claim, v.word) for v in verdicts if v.word != "PASS"] == [("C", "REFUSED")]
    assert not dataclasses.replace(outcome, plan=plan, verdicts=verdicts).passed


def test_the_report_says_which_cells_stay_on_the_device(outcome, capsys):
    record = gate.record_of(outcome)
    assert "device" not in report.last_line(record)
    for row in record["measurements"]:
        if (row["arm"], row["cell"]) == ("streamed", outcome.plan.cells[0].name):
            row["streaming_proof"] = row["streaming_proof"] | {"stays": True}
    report.show(record)
    shown = capsys.readouterr().out
    assert "4 cells, 1 of them on the device all along" in shown
    assert shown.count("stays on the device") == 1


def test_nothing_of_a_former_request_is_read_again(
    outcome, request_, monkeypatch, capsys, no_processes
):
    real = gate.product_job

    def no_product(name, module, *arguments):
        return real(name, module if module == "prepare" else "no_such_module", *arguments)

    for starter in (gate, gate_jobs):
        monkeypatch.setattr(starter, "product_job", no_product)
    monkeypatch.setattr(gate, "look_closer", lambda *_: [])
    again = run_gate(request_, mutants=False, say=print)
    assert {v.word for v in again.verdicts if v.claim != "A"} == {"REFUSED"}
    assert again.failed_jobs == ["streamed", "resumed"]
    assert not again.passed
    report.show(gate.record_of(again))
    shown = capsys.readouterr().out.splitlines()
    assert sum("REFUSED: the" in line for line in shown) == 1, "alike reasons are one line"
    (failed,) = [line for line in shown if line.startswith("streamed failed")]
    assert "No module named poros.measure.no_such_module" in failed


def test_only_what_is_kept_by_its_source_outlives_a_request(tmp_path):
    kept = {"nf4", "models", "mine.txt"}
    for name in (*kept, "adapters", "batches", "checkpoints", "checkpoint", "closer-0", "logs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for name in ("streamed.jsonl", "streamed.alone-00-llama.jsonl", "mutants.json", "plan.json"):
        (tmp_path / name).touch()
    forget_former(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_refusal_is_not_a_pass():
    refused = Verdict("D", "c", "REFUSED", 0, 3)
    assert refused.as_dict()["word"] == "REFUSED"


def test_shapes_name_a_family_of_the_table():
    assert {config["model_type"] for config in SHAPES.values()} >= {"qwen2", "llama", "phi3"}


@pytest.mark.parametrize(("device", "found"), [(None, "cpu"), ("cuda:1", "cuda:1")])
def test_families_run_on_the_cpu_unless_a_device_is_named(tmp_path, device, found):
    request = _request(None, False, None, "llama", None, tmp_path, {"device": device})
    assert (request.target, request.device) == ("family", found)


def test_an_artifact_tells_why_a_job_failed_without_this_machines_folders():
    said = 'File "/home/me/venv/lib/python3.12/site-packages/torch/nn/a.py", line 3\nOSError: full'
    failed = Ended("streamed", 1, 2.0, said).as_record()
    assert failed["last_lines"] == 'File "a.py", line 3\nOSError: full'
    assert Ended("streamed", 0, 2.0, said).as_record()["last_lines"] == ""
