import pytest
import torch

from poros.measure.gate import run_gate
from poros.measure.report import mutants_line
from poros.measure.request import Request

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

CUT_DOWN = {"target": "shape", "model": "qwen2.5-0.5b", "device": "cuda:0", "seq_len": 64}


def test_a_card_is_there():
    assert torch.cuda.is_available(), "the GPU lane without a GPU is a failure, not a skip"


def test_every_mutant_is_red_on_the_device(tmp_path):
    request = Request(**CUT_DOWN, folder=str(tmp_path), num_layers=5, num_steps=3, quick=True)
    outcome = run_gate(request, mutants=True, say=print)
    mutants = outcome.mutants or []
    print(mutants_line(mutants))
    wrong = [v for v in outcome.verdicts if v.word != "PASS"]
    wrong += [mutant for mutant in mutants if mutant["ok"] is False]
    assert outcome.passed, wrong or outcome.jobs["mutants"]
    # Its layers are not compiled; nothing else may be left out here.
    assert [mutant["name"] for mutant in mutants if mutant["ok"] is None] == [
        "forward without grad under compile"
    ]


def test_a_run_under_autocast_repeats_streams_and_resumes(tmp_path):
    request = Request(
        **CUT_DOWN, folder=str(tmp_path), num_layers=3, num_steps=3, autocast="bfloat16"
    )
    outcome = run_gate(request, mutants=False, say=print)
    assert outcome.passed, [v for v in outcome.verdicts if v.word != "PASS"] + [outcome.jobs]
    assert {v.claim for v in outcome.verdicts} == {"A", "B-fwd", "B-bwd", "C", "D"}


def test_the_smallest_budget_has_the_resident_bits_on_the_device(tmp_path):
    request = Request(
        **CUT_DOWN, folder=str(tmp_path), num_layers=6, num_steps=4, vram_budget="min"
    )
    outcome = run_gate(request, mutants=False, say=print)
    assert outcome.passed, [v for v in outcome.verdicts if v.word != "PASS"] + [outcome.jobs]
    (cell,) = outcome.plan.cells
    assert cell.moments_on_host
    assert cell.adapters_on_host
    assert cell.head_on_host
    end = outcome.arms["streamed"][cell.name].end
    assert all(group["pinned"] and group["device_bytes"] == 0 for group in end["holdings"])
    num_passes = cell.num_steps * cell.accumulation
    assert end["streaming_proof"]["num_visits"] == num_passes
    assert end["streaming_proof"]["num_boundary_stores"] == num_passes * 6


FAMILIES = "qwen3_5,gemma2,gemma3_text,gemma4,phi3,gpt_neox"
"""Between them all kinds of layers, of attention and of side tensors."""


def test_families_of_all_kinds_of_layers_stream_exactly_on_the_device(tmp_path):
    request = Request(
        target="family", folder=str(tmp_path), model=FAMILIES, device="cuda:0", num_steps=2,
        quick=True,
    )  # fmt: skip
    outcome = run_gate(request, mutants=True, say=print)
    wrong = [v for v in outcome.verdicts if v.word != "PASS"]
    wrong += [mutant for mutant in outcome.mutants or [] if mutant["ok"] is not True]
    assert outcome.passed, wrong or outcome.jobs
    assert {cell.family for cell in outcome.plan.cells} == set(FAMILIES.split(","))
