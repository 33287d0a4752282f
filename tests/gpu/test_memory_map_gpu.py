"""The memory map against the allocator's own figures, in a real step."""

import json

import pytest

from poros.measure.gate import record_of, run_gate
from poros.measure.map_report import memory_map_lines
from poros.measure.request import Request

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

CUT_DOWN = {
    "target": "shape", "model": "qwen2.5-0.5b", "device": "cuda:0", "num_layers": 4,
    "num_steps": 2, "quick": True, "memory_map": True,
}  # fmt: skip


@pytest.mark.parametrize("vram_budget", ["auto", "min"])
@pytest.mark.parametrize("expandable", [False, True])
def test_the_groups_are_the_allocators_peak_to_the_byte(
    tmp_path, monkeypatch, vram_budget, expandable
):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
    request = Request(**CUT_DOWN, folder=str(tmp_path), vram_budget=vram_budget)
    outcome = run_gate(request, mutants=False, say=print)
    assert outcome.passed, outcome.jobs
    maps = record_of(outcome)["memory_maps"]
    (record,) = maps.values()
    groups = {group["name"]: group["num_bytes"] for group in record["groups"]}
    told = "\n".join(memory_map_lines(maps)) + f"\n{without_places(record)}"
    print(told)
    assert record["peak_bytes"] == record["torch_peak_bytes"], told
    assert record["num_guessed"] == 0, told
    assert sum(groups.values()) == record["peak_bytes"], told
    unnamed = sum(size for name, size in groups.items() if name.startswith("not named"))
    assert unnamed <= 0.02 * record["peak_bytes"], told
    assert groups["slots of the ring"] > 0, told
    # This shape's head is its embeddings.
    assert ("head and embeddings" in groups) == (vram_budget == "auto"), told


def without_places(record):
    """The map but for the code that made what."""
    groups = [{k: v for k, v in g.items() if k != "places"} for g in record["groups"]]
    return json.dumps(record | {"groups": groups})


def test_an_arm_that_runs_out_of_memory_leaves_the_map_of_that_moment(tmp_path):
    request = Request(**CUT_DOWN | {"seq_len": 4096, "cap_bytes": 10**9}, folder=str(tmp_path))
    outcome = run_gate(request, mutants=False, say=print)
    (record,) = record_of(outcome)["memory_maps"].values()
    assert record["asked_bytes"] > 0
    assert sum(group["num_bytes"] for group in record["groups"]) == record["peak_bytes"]
