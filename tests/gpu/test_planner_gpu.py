"""Plans on a card: the budget holds, and the bits are the resident run's."""

import json

import pytest
import torch

from poros import events
from poros.config import PorosConfig
from poros.measure.gate import run_gate
from poros.measure.request import Request
from poros.training.session import Session
from tests.engine.training.tiny_run import tiny_settings, write_chat_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

NUM_LAYERS = 12


@pytest.mark.parametrize(("budget_gb", "all_resident"), [(0.65, False), (1.0, True)])
def test_a_budget_is_kept_with_the_resident_bits(tmp_path, budget_gb, all_resident):
    request = Request(
        target="shape", model="qwen2.5-0.5b", device="cuda:0", num_layers=NUM_LAYERS, seq_len=64,
        num_steps=4, quick=True, folder=str(tmp_path), vram_budget=budget_gb,
        cap_bytes=round(budget_gb * 1e9),
    )  # fmt: skip
    outcome = run_gate(request, mutants=False, say=print)
    assert outcome.passed, [v for v in outcome.verdicts if v.word != "PASS"] + [outcome.jobs]
    (cell,) = outcome.plan.cells
    assert (len(cell.resident) == NUM_LAYERS) is all_resident
    assert len(cell.resident) > 0
    end = outcome.arms["streamed"][cell.name].end
    print(json.dumps({"resident": cell.resident, "peak": end["peak_allocated_bytes"]}))
    assert end["peak_allocated_bytes"] <= budget_gb * 1e9
    assert end["streaming_proof"]["num_resident"] == len(cell.resident)


def test_a_run_plans_by_what_is_free_and_the_next_one_knows_what_it_took(tmp_path, monkeypatch):
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "cache"))
    model = write_chat_model(tmp_path / "model")
    plans, measured = [], []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        settings = tiny_settings(model, folder) | {"device": "cuda:0", "max_steps": 4}
        seen = []
        Session(PorosConfig(**settings), listeners=[lambda event, _, s=seen: s.append(event)]).run()
        plans += [event for event in seen if isinstance(event, events.PlanMade)]
        measured += [event for event in seen if isinstance(event, events.PlanMeasured)]
    torch.use_deterministic_algorithms(False)
    print(plans, measured)
    total_bytes = torch.cuda.get_device_properties(0).total_memory
    for plan in plans:
        assert 0 < plan.peak_bytes < plan.budget_bytes < total_bytes
        assert len(plan.resident) == plan.num_blocks
        assert plan.step_s is not None
    assert [plan.from_measured for plan in plans] == [False, True]
    assert measured[0].peak_bytes <= plans[1].peak_bytes
