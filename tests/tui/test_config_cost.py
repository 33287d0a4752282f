"""What the wizard says of memory and time is what the planner says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poros.check import check_model
from poros.check_memory import TextHeaders
from poros.config import PorosConfig
from poros.memory_planner import Rates
from poros_tui.screens.config_cost import Computer, Cost, cost, effect
from poros_tui.screens.config_form import fields
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers

CARD = Computer(
    card="card",
    total_bytes=12 * 2**30,
    free_bytes=11 * 2**30,
    rates=Rates(24e9, 60e12),
    host_bytes=32 * 2**30,
    disk_bytes=200 * 2**30,
)
LONG = {"dataset": "d.jsonl", "max_seq_length": 4096}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TextHeaders:
    folder = write_headers(tmp_path_factory.mktemp("m") / "m", QWEN_7B, qwen_tensors(QWEN_7B))
    text = check_model(str(folder)).text
    assert text is not None
    return text


def costs(model: TextHeaders | None, machine: Computer = CARD, **values: object) -> Cost:
    return cost(PorosConfig(**(LONG | values)), model, machine, 1000)


def told(model: TextHeaders, key: str, machine: Computer = CARD, **values: object) -> str:
    config = PorosConfig(**(LONG | values))

    def cost_of(other: PorosConfig) -> Cost:
        return cost(other, model, machine, 1000)

    return effect(key, config, cost_of(config), cost_of)


def test_it_fills_the_card_and_no_more(model: TextHeaders) -> None:
    found = costs(model)
    assert found.device_bytes is not None
    assert 6e9 < found.device_bytes <= CARD.free_bytes
    least = costs(model, vram_budget="min")
    assert least.device_bytes is not None
    assert least.device_bytes < found.device_bytes
    assert not found.refusal


def test_what_does_not_fit_says_what_would(model: TextHeaders) -> None:
    small = replace(CARD, total_bytes=3 * 2**30, free_bytes=3 * 2**30)
    found = costs(model, small, max_seq_length=65536)
    assert "needs" in found.refusal
    assert "max_seq_length" in found.way_out
    assert costs(model, small, max_seq_length=65536, vram_budget="min").refusal


def test_steps_come_from_rows_and_epochs(model: TextHeaders) -> None:
    assert costs(model).num_steps == 125
    assert costs(model, num_epochs=3).num_steps == 375
    assert costs(model, max_steps=7).num_steps == 7
    assert cost(PorosConfig(**LONG), model, CARD, None).num_steps is None
    low, high = costs(model).total_band_s or (0, 0)
    assert 0 < low < high


def test_without_a_card_all_is_the_hosts(model: TextHeaders) -> None:
    here, there = costs(model, Computer()), costs(model)
    assert here.device_bytes is None
    assert here.host_bytes is not None
    assert there.host_bytes is not None
    assert here.host_bytes > there.host_bytes
    assert here.step_s is None
    assert costs(model, device="cpu").device_bytes is None


def test_without_a_model_only_steps_are_told() -> None:
    found = costs(None)
    assert (found.device_bytes, found.host_bytes, found.num_steps) == (None, None, 125)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("vram_budget", "min: card -"),
        ("max_seq_length", "8192: "),
        ("gradient_accumulation_steps", "16: "),
        ("lora_rank", "32: "),
        ("host_tier", "disk: RAM -"),
        ("num_epochs", "2: time x2"),
        ("keep_checkpoints", "4: disk +"),
        ("quantization", "bf16: "),
        ("adapter_dtype", "bfloat16: "),
    ],
)
def test_a_setting_tells_what_another_value_would_do(
    model: TextHeaders, key: str, expected: str
) -> None:
    assert told(model, key).startswith(expected)


def test_of_settings_outside_the_estimate_nothing_is_said(model: TextHeaders) -> None:
    assert told(model, "seed") == ""
    assert told(model, "learning_rate") == ""
    assert told(model, "block_size") == "no change of memory or time"


def test_every_setting_can_be_asked(model: TextHeaders) -> None:
    assert {key for key in fields() if told(model, key)} >= {
        "vram_budget", "max_seq_length", "per_device_batch_size", "lora_rank", "num_epochs",
    }  # fmt: skip


def test_a_step_too_far_is_told_as_that(model: TextHeaders) -> None:
    small = replace(CARD, total_bytes=5 * 2**30, free_bytes=5 * 2**30)
    lengths = [256 * 2**k for k in range(10)]
    longest = max(n for n in lengths if not costs(model, small, max_seq_length=n).refusal)
    assert longest in lengths[1:-1]
    assert told(model, "max_seq_length", small, max_seq_length=longest) == (
        f"{2 * longest}: does not fit"
    )
