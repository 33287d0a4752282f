"""Presets are sized by the planner, and every one of them is a config that trains."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from poros.check import check_model
from poros.config import PorosConfig
from poros.demo_settings import train_path
from poros.memory_sizes import ModelSizes
from poros_tui.screens.config_form import Form
from poros_tui.screens.config_presets import (
    CPU,
    EFFORTS,
    HERE,
    card_choices,
    effort_told,
    free_folder,
    preset,
)
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> ModelSizes:
    folder = write_headers(tmp_path_factory.mktemp("m") / "m", QWEN_7B, qwen_tensors(QWEN_7B))
    found = check_model(str(folder)).memory
    assert found is not None
    return found


def test_every_preset_is_a_config_without_a_problem(sizes: ModelSizes) -> None:
    for effort, card, rows in itertools.product(EFFORTS, card_choices(12 * 2**30), (None, 90)):
        made = preset(
            "m", "d.jsonl", "out", effort=effort, card=card, card_bytes=12 * 2**30, sizes=sizes,
            num_rows=rows,
        )  # fmt: skip
        assert Form(made.settings).check().config == PorosConfig(**made.settings)


def test_a_larger_card_gets_no_smaller_work(sizes: ModelSizes) -> None:
    work = []
    for card in ("4 GB", "8 GB", "16 GB", "48 GB"):
        made = preset("m", "d.jsonl", "out", card=card, sizes=sizes).settings
        work.append(made["max_seq_length"] * made.get("per_device_batch_size", 1))
    assert work == sorted(work)
    assert work[0] < work[-1]


def test_a_short_run_warms_up_shortly() -> None:
    assert preset("m", "d", "o", num_rows=160).settings["warmup_steps"] == 2
    assert preset("m", "d", "o", num_rows=40).settings["num_epochs"] == 4
    assert preset("m", "d", "o", effort="quick look").settings["warmup_steps"] == 3
    assert "warmup_steps" not in preset("m", "d", "o", num_rows=100_000).settings


@pytest.mark.parametrize("num_rows", [1, 7, 40, 90, 240, 5000])
def test_a_more_thorough_run_is_never_shorter_however_few_the_rows(num_rows: int) -> None:
    steps = []
    for effort in EFFORTS:
        made = preset("m", "d", "o", effort=effort, num_rows=num_rows).settings
        epochs = made.get("num_epochs", 1) * -(-num_rows // 8)
        steps.append(made.get("max_steps", epochs))
        assert str(made.get("max_steps", "example")) in effort_told(effort, made)
    assert steps == sorted(steps)
    assert steps[0] <= 30
    assert steps[1] >= min(20, 10 * -(-num_rows // 8))


def test_without_a_card_it_is_the_cpu() -> None:
    assert card_choices(None)[0] == CPU
    assert card_choices(1)[0] == HERE
    assert preset("m", "d", "o", card=CPU, card_bytes=2**33).settings["device"] == "cpu"


def test_the_demos_data_bring_the_demos_settings() -> None:
    made = preset("model", str(train_path()), "out", effort="thorough")
    assert made.settings["max_steps"] == 40
    assert len(made.settings["samples"]) == 20
    assert Form(made.settings).check().config == PorosConfig(**made.settings)


def test_a_folder_that_is_there_gets_the_next_name(tmp_path: Path) -> None:
    assert free_folder(str(tmp_path / "run")) == str(tmp_path / "run")
    (tmp_path / "run").mkdir()
    assert free_folder(str(tmp_path / "run")) == str(tmp_path / "run-2")
