"""Memory that ends where bytes travel: at room for them, at a copy, and on the way down."""

from __future__ import annotations

import pytest
import torch

from poros import events, failpoints
from poros.config import PorosConfig
from poros.errors import PorosOOMError
from poros.memory_plan import MemoryPlan
from poros.training import looks, planning, rollback, trainer
from poros.training.session import Session
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.tiny_run import results_of, tiny_settings

pytestmark = pytest.mark.timeout(300)

RESIDENT = MemoryPlan(resident=(1,), moments_on_host=True, head_on_host=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """More layers than slots: every pass copies."""
    path = tmp_path_factory.mktemp("four") / "model"
    write_model(path, num_hidden_layers=4, vocab_size=264, max_position_embeddings=128)
    tiny_tokenizer().save_pretrained(path)
    return path


@pytest.fixture
def run(folder, tmp_path_factory, monkeypatch):
    """Trains three steps with changed settings; the events, and the run's folder."""

    def train(armed="", **changes):
        failpoints.reset()
        monkeypatch.setenv(failpoints.VARIABLE, armed)
        place = tmp_path_factory.mktemp("run")
        monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        seen = []
        settings = tiny_settings(folder, place) | {"max_steps": 3, "save_steps": 1} | changes
        train.out = place / "out"
        Session(PorosConfig(**settings), listeners=[lambda event, _: seen.append(event)]).run()
        return seen, results_of(train.out)

    yield train
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    """What a run with memory enough comes to."""
    place = tmp_path_factory.mktemp("whole")
    settings = tiny_settings(folder, place) | {"max_steps": 3, "save_steps": 1}
    Session(PorosConfig(**settings)).run()
    return results_of(place / "out")


def hits_in_second_step(run, monkeypatch, point, **changes):
    """How often a run came by a failpoint when its second step began, and when it had ended."""
    real, counts = trainer.train_step, []

    def counted(*args, **named):
        before = failpoints._num_hits.get(point, 0)
        result = real(*args, **named)
        counts.append((before, failpoints._num_hits.get(point, 0)))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "train_step", counted)
        run(f"{point}:oom@1000000", **changes)
    return counts[1]


@pytest.mark.parametrize(
    ("point", "changes"),
    [
        ("copy", {}),
        ("copy", {"plan": RESIDENT}),
        ("room", {"plan": RESIDENT}),
        ("copy", {"vram_budget": "min"}),
        ("room", {"vram_budget": "min"}),
        ("copy", {"host_tier": "pageable"}),
        ("copy", {"vram_budget": "min", "host_tier": "disk"}),
    ],
)
def test_a_shortage_where_bytes_travel_costs_no_bit(run, whole, monkeypatch, point, changes):
    if plan := changes.get("plan"):
        monkeypatch.setattr(planning, "fixed_plan", lambda _: plan)
    changes = {name: value for name, value in changes.items() if name != "plan"}
    first, last = hits_in_second_step(run, monkeypatch, f"train.{point}", **changes)
    assert last > first + 2
    for number in (first + 1, (first + last) // 2 + 1):
        seen, found = run(f"train.{point}:oom@{number}", **changes)
        assert found == whole, number
        told = [e for e in seen if isinstance(e, events.PlanShrunk) or named(e, "memory")]
        assert len(told) == 1, number


def named(event, code):
    return isinstance(event, events.Warned) and event.code == code


def all_the_way(point, first):
    """One shortage for each rung below the bare ring."""
    return ",".join(f"train.{point}:oom@{number}" for number in range(first, first + 5))


@pytest.mark.parametrize(("point", "first", "slot"), [("forward", 3, 3), ("optimizer", 2, 6)])
def test_room_that_is_short_on_the_way_to_a_smaller_plan_costs_no_bit(
    run, whole, monkeypatch, point, first, slot
):
    monkeypatch.setattr(planning, "fixed_plan", lambda _: MemoryPlan())
    seen, found = run(f"{all_the_way(point, first)},train.room:oom@{slot}")
    assert found == whole
    shrunk = [event for event in seen if isinstance(event, events.PlanShrunk)]
    assert shrunk[-1].change == "adapters to the host"


def test_a_plan_that_there_is_no_room_to_take_ends_the_run_with_its_checkpoint(run):
    with pytest.raises(PorosOOMError) as caught:
        run(f"{all_the_way('forward', 3)},train.room:oom@3+")
    assert caught.value.where == "while a smaller plan was taken"
    assert "vram_budget: min" in caught.value.remediation
    checkpoints = sorted(path.name for path in (run.out / "checkpoints").glob("step-*"))
    assert checkpoints == ["step-000001"]


def test_an_evaluation_does_not_hide_a_plan_that_was_taken_by_half(run, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(looks, "evaluate", full)
    held_out = tiny_settings_file(run)
    with pytest.raises(PorosOOMError) as caught:
        run("train.room:oom@3+", eval_dataset=held_out)
    assert caught.value.where == "while a smaller plan was taken"


def tiny_settings_file(run):
    """The questions of a run that was made."""
    run(max_steps=1)
    return str(run.out.parent / "data.jsonl")


def test_nothing_is_kept_beside_a_step_that_no_shortage_can_break(run, whole, monkeypatch):
    copies = []
    monkeypatch.setattr(rollback, "_copies", lambda tensors: copies.append(tensors) or [])
    assert run()[1] == whole
    assert copies == []
