"""Memory that runs out on a device: on purpose at every phase, and for real under a cap."""

from __future__ import annotations

import json

import pytest
import torch

from poros import events, failpoints
from poros.config import PorosConfig
from poros.memory_plan import FEWEST_SLOTS, MemoryPlan
from poros.memory_planner import rungs
from poros.streaming.shortage import free
from poros.training import planning
from poros.training.session import Session
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.tiny_run import results_of, tiny_settings

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

CUDA = torch.device("cuda", 0)
NUM_TOKENS = 1000
NUM_SLOTS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small llama with many words: its head and its loss are most of what a step needs."""
    path = tmp_path_factory.mktemp("words") / "model"
    write_model(path, num_hidden_layers=4, vocab_size=64_000, max_position_embeddings=2048)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def run(folder, tmp_path_factory, monkeypatch):
    """Trains with changed settings; the events, and what came out."""

    def train(cache=None, **changes):
        failpoints.reset()
        place = tmp_path_factory.mktemp("run")
        # A run that ran out must not make the next one's plan smaller.
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache or place / "cache"))
        settings = tiny_settings(folder, place) | {
            "device": "cuda:0", "max_steps": 3, "max_seq_length": NUM_TOKENS,
            "per_device_batch_size": 1, "num_slots": NUM_SLOTS,
        }  # fmt: skip
        rows = [{"text": f"row {k} " + "many words " * NUM_TOKENS} for k in range(8)]
        (place / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        seen = []
        config = PorosConfig(**(settings | changes))
        Session(config, listeners=[lambda event, line: seen.append(event)]).run()
        free(CUDA)
        return seen, results_of(place / "out")

    yield train
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.use_deterministic_algorithms(False)


def shrunk(seen):
    return [event for event in seen if isinstance(event, events.PlanShrunk)]


def reserved(seen):
    return max(e.device_reserved_bytes for e in seen if isinstance(e, events.StepFinished))


@pytest.mark.parametrize("budget", ["auto", "min"])
@pytest.mark.parametrize("point", ["forward", "backward", "norm", "optimizer"])
def test_a_shortage_on_purpose_costs_no_bit(run, monkeypatch, point, budget):
    _, whole = run()
    monkeypatch.setenv(failpoints.VARIABLE, f"train.{point}:oom@2")
    seen, found = run(vram_budget=budget)
    assert bool(shrunk(seen)) == (budget == "auto")
    assert found == whole


@pytest.mark.parametrize(
    ("armed", "changes"),
    [
        ("train.copy:oom@2", {}),
        ("train.copy:oom@9", {"vram_budget": "min"}),
        ("train.copy:oom@10", {"vram_budget": "min", "host_tier": "pageable"}),
        ("train.copy:oom@11", {"vram_budget": "min", "host_tier": "disk"}),
        # The first six are made at the start: two of blocks, four of adapters and gradients.
        ("train.room:oom@8", {"vram_budget": "min"}),
        ("train.room:oom@14", {"vram_budget": "min"}),
    ],
)
def test_a_shortage_where_bytes_travel_costs_no_bit(run, monkeypatch, armed, changes):
    _, whole = run()
    monkeypatch.setenv(failpoints.VARIABLE, armed)
    seen, found = run(**changes)
    assert found == whole
    told = [e for e in seen if isinstance(e, events.Warned) and e.code == "memory"]
    assert len(shrunk(seen)) + len(told) == 1


def test_the_next_run_does_not_begin_with_a_plan_that_ran_out(run, tmp_path, monkeypatch):
    large, whole = run()
    small, _ = run(vram_budget="min")
    cap_gb = (reserved(small) + reserved(large)) / 2 / 1e9
    monkeypatch.setattr(planning, "usable_bytes", lambda _: 10**12)  # sees room that is not there
    first, found = run(vram_budget=cap_gb, cache=tmp_path)
    assert found == whole
    assert shrunk(first)
    monkeypatch.undo()
    second, found = run(vram_budget=cap_gb, cache=tmp_path)
    assert found == whole
    print([len(shrunk(seen)) for seen in (first, second)])
    assert plan_made(second) != plan_made(first)
    assert len(shrunk(second)) < len(shrunk(first))


def plan_made(seen):
    [made] = [event for event in seen if isinstance(event, events.PlanMade)]
    return made.resident, made.on_host, made.num_slots


def num_rungs(seen):
    """Steps down from the plan that was made, but for the visits of a head that makes none."""
    resident, _, num_slots = plan_made(seen)
    plan = MemoryPlan(num_slots=max(num_slots, FEWEST_SLOTS), resident=tuple(resident))
    return len(list(rungs(plan))) - 2


def test_all_the_way_down_costs_no_bit(run, monkeypatch):
    large, whole = run()
    for point in ("backward", "optimizer"):
        last = 2 + num_rungs(large)
        armed = ",".join(f"train.{point}:oom@{number}" for number in range(2, last))
        monkeypatch.setenv(failpoints.VARIABLE, armed)
        seen, found = run()
        assert len(shrunk(seen)) == num_rungs(large)
        assert shrunk(seen)[-1].change == "adapters to the host"
        assert found == whole


def test_under_a_real_cap_the_run_gets_smaller_and_ends_with_the_same_bits(run):
    large, whole = run()
    small, same = run(vram_budget="min")
    assert same == whole
    assert reserved(small) < 0.8 * reserved(large)
    cap_bytes = (reserved(small) + reserved(large)) // 2
    total_bytes = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction(cap_bytes / total_bytes)
    seen, found = run()
    assert found == whole
    assert all(event.asked_bytes > 0 for event in shrunk(seen))
    assert all(abs(event.cap_bytes - cap_bytes) < 2**21 for event in shrunk(seen))
    assert shrunk(seen)
    assert reserved(seen) <= cap_bytes
