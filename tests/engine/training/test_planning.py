"""The plan of a run: counted sizes, budgets, what is told, and the bits of every plan."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
import torch

from poros import events, plan_history
from poros.check import check_model
from poros.config import PorosConfig
from poros.errors import PorosOOMError
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.memory_plan import MemoryPlan, evenly_spaced, smaller
from poros.memory_planner import smallest
from poros.memory_sizes import budget_for, lasting_bytes, peak_bytes, usable_bytes
from poros.training import planning
from poros.training.lora import attach_lora, trainable_params
from poros.training.planning import (
    PlanWatch,
    longest_rows,
    model_sizes,
    plan_run,
    step_shape,
)
from poros.training.session import Session
from tests.engine.loading.tiny_models import CPU, write_model
from tests.engine.training.tiny_run import results_of, tiny_settings

NUM_LAYERS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("six"), num_hidden_layers=NUM_LAYERS)


@pytest.fixture
def base(folder):
    return load_base_model(SafetensorsSource(folder), device=CPU, cache=None, emit=lambda _: None)


CONFIG = PorosConfig(lora_rank=4)


def test_the_planners_sizes_are_those_of_the_model(base) -> None:
    sizes = model_sizes(base, CONFIG)
    assert sizes.block_bytes == tuple(block.num_bytes for block in base.blocks)
    groups = lasting_bytes(MemoryPlan(), sizes)
    ends = sum(groups[name] for name in ("head", "embeddings", "norms and the like"))
    assert ends == base.resident_bytes
    params = trainable_params(attach_lora(base, rank=4, targets=None))
    assert sizes.num_adapter_weights == sum(p.numel() for _, p in params) > 0
    assert groups["adapters"] == sum(p.numel() * p.element_size() for _, p in params)


def test_headers_alone_give_the_planner_nearly_the_same_sizes(base, folder) -> None:
    loaded = model_sizes(base, CONFIG)
    told = check_model(str(folder), rank=4).memory
    assert told is not None
    for field in dataclasses.fields(told):
        if field.name not in ("block_bytes", "other_bytes", "linears"):
            assert getattr(told, field.name) == getattr(loaded, field.name), field.name
    assert Counter(told.linears) == Counter(loaded.linears)
    # A block's last tensor is not padded; beside the ends, the rotary table is resident.
    pairs = zip(told.block_bytes, loaded.block_bytes, strict=True)
    assert all(0 <= a - b < 256 for a, b in pairs)
    assert abs(told.other_bytes - loaded.other_bytes) < 1000


@pytest.mark.parametrize(
    "targets", [("q_proj",), r".*layers\.[01]\..*(up|down)_proj", "all-linear"]
)
def test_adapters_are_counted_where_peft_puts_them(base, targets) -> None:
    config = PorosConfig(lora_rank=4, lora_target_modules=targets)
    counted = model_sizes(base, config).num_adapter_weights
    params = trainable_params(attach_lora(base, rank=4, targets=targets))
    assert counted == sum(p.numel() for _, p in params) > 0


def planned(base, config: PorosConfig, device=CPU):
    told: list[events.Event] = []
    found = plan_run(config, base, device=device, num_rows=64, emit=told.append)
    return found, told


def test_without_an_amount_the_plan_is_the_bare_ring_or_the_smallest(base) -> None:
    assert planned(base, PorosConfig(num_slots=3))[0].plan == MemoryPlan(num_slots=3)
    least, told = planned(base, PorosConfig(num_slots=3, vram_budget="min"))
    assert least.plan.adapters_on_host
    assert isinstance(told[0], events.PlanMade)
    assert {"head", "embeddings", "moments", "adapters"} <= set(told[0].on_host)
    assert (told[0].budget_bytes, told[0].peak_bytes) == (None, 0)  # there is no card


def filled_by(sizes, plan: MemoryPlan, config: PorosConfig) -> float:
    """GB of which a plan for 64 rows fills all that is to be filled."""
    return budget_for(peak_bytes(plan, sizes, step_shape(config, 64))) / 1e9


def test_an_amount_is_filled_with_evenly_spaced_blocks_and_a_small_one_warns(base) -> None:
    wanted = MemoryPlan(resident=evenly_spaced(NUM_LAYERS, 3))
    gb = filled_by(model_sizes(base, CONFIG), wanted, CONFIG)
    found, told = planned(base, PorosConfig(lora_rank=4, vram_budget=gb))
    assert list(found.plan.resident) == told[0].resident == [1, 3, 5]
    assert told[0].budget_bytes == round(gb * 1e9)
    assert not found.plan.head_on_host
    found, told = planned(base, PorosConfig(vram_budget=0.001))
    assert found.plan == smallest(MemoryPlan())
    assert [type(event) for event in told] == [events.Warned, events.PlanMade]


def on_card(monkeypatch, *, free: int, total: int = 8 * 10**9) -> None:
    """Make planning believe in a card."""
    properties = type("Properties", (), {"total_memory": total})
    held: list[float] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, total))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, _: held.append(part)
    )
    monkeypatch.setattr(planning, "machine_rates", lambda *_: planning.Rates(25e9, 1e13))
    on_card.held = held


def test_auto_takes_what_is_free_but_for_a_margin(base, monkeypatch) -> None:
    on_card(monkeypatch, free=6 * 10**9)
    found, told = planned(base, PorosConfig(), device=torch.device("cuda:0"))
    assert found.budget_bytes == 6 * 10**9 + 5 - 256 * 2**20
    assert found.plan.resident == tuple(range(NUM_LAYERS))
    assert told[0].device_bytes > told[0].peak_bytes > 0
    assert told[0].step_s is not None
    assert on_card.held == []


def test_an_amount_on_a_card_is_a_limit_and_one_that_can_never_do_is_refused(
    base, monkeypatch
) -> None:
    on_card(monkeypatch, free=6 * 10**9)
    device = torch.device("cuda:0")
    planned(base, PorosConfig(vram_budget=2.0), device=device)
    assert on_card.held == [0.25]
    with pytest.raises(PorosOOMError, match="the smallest plan needs") as refused:
        planned(base, PorosConfig(vram_budget=0.0001), device=device)
    assert "vram_budget" in refused.value.remediation


def step(number: int, **fields) -> events.StepFinished:
    values = {field.name: 0 for field in dataclasses.fields(events.StepFinished)}
    values |= {"step": number, "duration_s": 0.5, "device_peak_bytes": 70, "loss": 0.0}
    return events.StepFinished(**values | fields)


def test_measured_values_are_told_after_the_first_steps_and_serve_the_next_plan(
    base, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    on_card(monkeypatch, free=6 * 10**9)
    device = torch.device("cuda:0")
    found, _ = planned(base, PorosConfig(), device=device)
    told: list[events.Event] = []
    watch = PlanWatch(found, steps_per_epoch=5, emit=told.append)
    for number in range(1, 7):
        watch.hear(step(number, device_peak_bytes=60 + number, device_reserved_bytes=99))
        assert len(told) == (number >= 3)
    assert told == [
        events.PlanMeasured(
            step=3, peak_bytes=63, reserved_bytes=99, step_s=0.5,
            expected_peak_bytes=found.expected.peak_bytes, expected_step_s=found.expected.step_s,
        )
    ]  # fmt: skip
    (kept,) = plan_history.read_runs(found.key)
    assert (kept.peak_bytes, kept.whole, kept.plan) == (65, True, found.plan)
    again, told = planned(base, PorosConfig(), device=device)
    assert (again.expected.peak_bytes, again.expected.step_s) == (65, 0.5)
    assert told[0].from_measured
    other, _ = planned(base, PorosConfig(lora_rank=8), device=device)
    assert not other.from_measured
    from_disk, told = planned(
        dataclasses.replace(base, host_tier="disk"), PorosConfig(), device=device
    )
    assert not from_disk.from_measured
    assert told[0].step_s is None
    assert told[0].bottleneck.startswith("the disk: most of ")


def test_a_plan_that_ran_out_is_not_what_the_next_run_begins_with(
    base, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    device, config = torch.device("cuda:0"), PorosConfig(vram_budget=1.0)
    on_card(monkeypatch, free=6 * 10**9)
    first, _ = planned(base, config, device=device)
    assert len(first.plan.resident) == NUM_LAYERS
    watch = PlanWatch(first, steps_per_epoch=5, emit=lambda _: None)
    below = smaller(first.plan)
    shortage = {"step": 1, "phase": "forward", "change": "", "plan": dataclasses.asdict(below)}
    bytes_of = {"asked_bytes": 10**8, "in_use_bytes": 95 * 10**7, "cap_bytes": 10**9}
    watch.hear(events.PlanShrunk(**shortage, **bytes_of))
    again, told = planned(base, config, device=device)
    assert again.plan != first.plan
    assert again.expected.peak_bytes <= usable_bytes(10**9)
    assert not told[0].from_measured
    roomy, told = planned(base, PorosConfig(vram_budget=2.0), device=device)
    assert roomy.plan == first.plan
    assert roomy.expected.peak_bytes == 105 * 10**7
    assert not told[0].from_measured


def test_a_shortage_without_sizes_teaches_nothing(base, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    on_card(monkeypatch, free=6 * 10**9)
    found, _ = planned(base, PorosConfig(), device=torch.device("cuda:0"))
    watch = PlanWatch(found, steps_per_epoch=5, emit=lambda _: None)
    fields = {"step": 1, "phase": "forward", "change": "", "asked_bytes": 0, "in_use_bytes": 5}
    below = dataclasses.asdict(smaller(found.plan))
    watch.hear(events.PlanShrunk(**fields, cap_bytes=9, plan=below))
    assert plan_history.read_runs(found.key) == []


def test_without_a_card_nothing_is_kept(base, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    found, _ = planned(base, PorosConfig())
    watch = PlanWatch(found, steps_per_epoch=2, emit=lambda _: None)
    for number in range(1, 5):
        watch.hear(step(number, device_peak_bytes=0))
    assert plan_history.read_runs(found.key) == []


@pytest.mark.parametrize(("packing", "expected"), [(False, 3 * 9), (True, 3 * 16)])
def test_the_longest_micro_batch_is_planned_for(packing, expected) -> None:
    config = PorosConfig(per_device_batch_size=3, max_seq_length=16, packing=packing)
    assert longest_rows(config, [4, 9, 2]) == expected


def test_every_budget_has_the_bits_of_the_bare_ring(chat_folder, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found, plans = [], []
    for budget in ("auto", 1.0, 0.001):
        place = tmp_path / str(budget)
        place.mkdir()
        settings = tiny_settings(chat_folder, place) | {
            "vram_budget": budget, "device": "auto", "max_steps": 3,
        }  # fmt: skip
        seen: list[events.Event] = []
        Session(PorosConfig(**settings), listeners=[lambda event, _, s=seen: s.append(event)]).run()
        found.append(results_of(place / "out"))
        plans += [e for e in seen if isinstance(e, events.PlanMade)]
        assert sum(isinstance(e, events.PlanMeasured) for e in seen) == 1
    torch.use_deterministic_algorithms(False)
    assert found[0].items() == found[1].items() == found[2].items()
    assert [len(plan.resident) for plan in plans] == [0, 2, 0]
    assert [bool(plan.on_host) for plan in plans] == [False, False, True]
