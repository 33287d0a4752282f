"""A run whose device has too little memory goes on under a smaller plan, with the same bits."""

from dataclasses import replace

import pytest
import torch

from poros import events, failpoints
from poros.config import PorosConfig
from poros.errors import PorosOOMError
from poros.memory_plan import MemoryPlan
from poros.training import looks
from poros.training.placement import in_words
from poros.training.session import Session
from tests.engine.training.tiny_run import results_of, tiny_settings, write_rows

NUM_RUNGS = 5
"""Boundaries, head, embeddings, moments, adapters."""


@pytest.fixture
def settings(chat_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    failpoints.reset()
    yield tiny_settings(chat_folder, tmp_path) | {"max_steps": 3}
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def whole(chat_folder, tmp_path_factory):
    """What a run with memory enough comes to."""
    folder = tmp_path_factory.mktemp("whole")
    train(tiny_settings(chat_folder, folder) | {"max_steps": 3})
    return results_of(folder / "out")


def train(settings, **changes):
    seen = []
    config = PorosConfig(**(settings | changes))
    Session(config, listeners=[lambda event, line: seen.append(event)]).run()
    return seen


def arm(monkeypatch, *entries):
    monkeypatch.setenv(failpoints.VARIABLE, ",".join(entries))


def shrunk(seen):
    return [event for event in seen if isinstance(event, events.PlanShrunk)]


@pytest.mark.parametrize(
    ("point", "phase"),
    [("forward", "forward"), ("backward", "backward"), ("norm", "norm"), ("optimizer", "step")],
)
@pytest.mark.parametrize("budget", ["auto", "min"])
def test_a_shortage_costs_no_bit(settings, whole, monkeypatch, tmp_path, point, phase, budget):
    num_parts = 2 if budget == "min" else 1  # of the optimizer's step: a block is one
    number = {"norm": 2, "optimizer": num_parts + 1}.get(point, 4)
    arm(monkeypatch, f"train.{point}:oom@{number}")
    seen = train(settings, vram_budget=budget)
    assert results_of(tmp_path / "out") == whole
    if budget == "min":
        [message] = [e.message for e in seen if isinstance(e, events.Warned) and e.code == "memory"]
        assert message.startswith(f"step 2, {phase}: out of device memory under the smallest plan")
        assert not shrunk(seen)
    else:
        assert [(event.step, event.phase) for event in shrunk(seen)] == [(2, phase)]


@pytest.mark.parametrize(("point", "first"), [("forward", 3), ("optimizer", 2)])
def test_all_the_way_down_costs_no_bit(settings, whole, monkeypatch, tmp_path, point, first):
    numbers = range(first, first + NUM_RUNGS)
    arm(monkeypatch, *(f"train.{point}:oom@{number}" for number in numbers))
    seen = train(settings)
    assert results_of(tmp_path / "out") == whole
    assert [event.change for event in shrunk(seen)] == [
        f"{group} to the host"
        for group in ("boundaries", "head", "embeddings", "moments", "adapters")
    ]


def test_the_memory_map_has_what_a_smaller_plan_moved(settings, monkeypatch, tmp_path):
    arm(monkeypatch, "train.forward:oom@1", "train.forward:oom@2")
    seen = []
    config = PorosConfig(**(settings | {"max_steps": 1}))
    listeners = [lambda event, line: seen.append(event)]
    Session(config, listeners=listeners, memory_map=True).run()
    assert len(shrunk(seen)) == 2
    [mapped] = [event for event in seen if isinstance(event, events.MemoryMapped)]
    assert set(mapped.host_bytes) == {"blocks", "head and embeddings", "boundaries"}
    assert min(mapped.host_bytes.values()) > 0


@pytest.mark.parametrize("num_shortages", [1, 2, 3])
def test_blocks_that_all_had_a_place_begin_to_travel(
    settings, whole, monkeypatch, tmp_path, num_shortages
):
    numbers = range(3, 3 + num_shortages)
    arm(monkeypatch, *(f"train.forward:oom@{number}" for number in numbers))
    seen = train(settings, device="auto", vram_budget=8, num_slots=4)
    [made] = [event for event in seen if isinstance(event, events.PlanMade)]
    assert (made.num_slots, len(made.resident)) == (0, made.num_blocks)
    assert results_of(tmp_path / "out") == whole
    assert len(shrunk(seen)) == num_shortages
    assert [event.plan["num_slots"] for event in shrunk(seen)] == [2] * num_shortages


def test_without_a_smaller_plan_the_run_ends_with_what_to_set(settings, monkeypatch, tmp_path):
    arm(monkeypatch, "train.backward:oom@5+")
    with pytest.raises(PorosOOMError) as caught:
        train(settings, save_steps=1, per_device_batch_size=2)
    assert caught.value.where == "step 3, backward"
    assert "per_device_batch_size: 1 with gradient_accumulation_steps: 4, which was tried" in str(
        caught.value
    )
    assert caught.value.phase == "backward"
    setting = "per_device_batch_size: 1 with gradient_accumulation_steps: 4"
    assert caught.value.setting == setting
    assert caught.value.record()["memory"]["setting"] == setting
    assert sorted(path.name for path in (tmp_path / "out/checkpoints").glob("step-*")) == [
        "step-000001", "step-000002",
    ]  # fmt: skip


def full():
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0")


@pytest.mark.parametrize("largest", [1, 0])
def test_an_evaluation_is_made_smaller_or_left_out(settings, whole, monkeypatch, tmp_path, largest):
    evaluate = looks.evaluate

    def limited(model, batches, **named):
        batches = list(batches)
        if max(len(batch.input_ids_BT) for batch in batches) > largest:
            raise full()
        return evaluate(model, batches, **named)

    monkeypatch.setattr(looks, "evaluate", limited)
    held_out = write_rows(tmp_path / "held_out.jsonl", 3)
    seen = train(settings, eval_dataset=str(held_out))
    assert results_of(tmp_path / "out") == whole
    assert len([e for e in seen if isinstance(e, events.EvaluationFinished)]) == 2 * largest
    assert {event.phase for event in shrunk(seen)} == {"evaluate"}
    warned = [e.message for e in seen if isinstance(e, events.Warned)]
    assert any(("1 rows at a time" if largest else "left out") in message for message in warned)


@pytest.mark.parametrize("largest", [1, 0])
def test_answers_are_made_one_by_one_or_left_out(settings, whole, monkeypatch, tmp_path, largest):
    answer = looks.answer

    def limited(model, tokenizer, prompts, **named):
        if len(prompts) > largest:
            raise full()
        return answer(model, tokenizer, prompts, **named)

    monkeypatch.setattr(looks, "answer", limited)
    seen = train(settings, samples=["what is 1?", "what is 2?"], sample_tokens=2)
    assert results_of(tmp_path / "out") == whole
    assert len([e for e in seen if isinstance(e, events.SampleGenerated)]) == 4 * largest


def test_what_moved_is_told_and_no_more():
    early = MemoryPlan(head_on_host=True)
    late = replace(early, head_prefetch=False)
    assert in_words(early, late) == "the head after the last block instead of beside it"
    assert in_words(MemoryPlan(), late) == "head to the host"
