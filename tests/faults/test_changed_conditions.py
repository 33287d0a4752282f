"""Fault 40: each input of a run changed alone: refused with the change told, or the same bits."""

import json

import pytest

from poros.run_folder import read_run
from poros.training.run_inputs import NUMERIC
from tests.engine.training.tiny_run import results_of
from tests.faults.bench import edit_json, expect

REFUSED = {
    "quantization": {"quantization": "bf16"},
    "torch_dtype": {"torch_dtype": "float32"},
    "attn_implementation": {"attn_implementation": "eager"},
    "preserve_rng_state": {"preserve_rng_state": False, "lora_dropout": 0.0},
    "lora_rank": {"lora_rank": 8},
    "lora_alpha": {"lora_alpha": 8},
    "lora_dropout": {"lora_dropout": 0.1},
    "lora_target_modules": {"lora_target_modules": ["q_proj"]},
    "adapter_dtype": {"adapter_dtype": "bfloat16"},
    "learning_rate": {"learning_rate": 2e-3},
    "weight_decay": {"weight_decay": 0.1},
    "max_grad_norm": {"max_grad_norm": 2.0},
    "warmup_steps": {"warmup_steps": 3},
    "lr_scheduler": {"lr_scheduler": "linear"},
    "per_device_batch_size": {"per_device_batch_size": 1},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 1},
    "autocast": {"autocast": True},
    "seed": {"seed": 43},
    "max_seq_length": {"max_seq_length": 65},
    "train_on": {"train_on": "everything"},
    "overlong": {"overlong": "drop"},
    "packing": {"packing": True},
    "total_steps": {"max_steps": 8},
    "cpu threads": {"cpu_threads": 2},
}

INVARIANT = {
    "block_size": {"block_size": 2},
    "num_slots": {"num_slots": 3},
    "prefetch": {"enable_prefetch": False},
    "no cache": {"nf4_cache": "off"},
    "blocks on disk": {"host_tier": "disk"},
    "saving": {"save_steps": 3, "keep_checkpoints": 3},
    "evaluating": {"eval_dataset": "data.jsonl", "samples": ["why?"], "sample_tokens": 2},
}

REFUSED_PLANTS = {"peft": "other_library", "cpu instruction set": "other_instruction_set"}


def whole(world):
    return results_of(world.folder / "whole" / "out")


def test_the_table_has_every_setting_that_changes_the_result():
    assert set(NUMERIC) <= REFUSED.keys()


@pytest.mark.parametrize("name", REFUSED)
def test_a_changed_setting_is_refused_with_both_values(name, stopped):
    stopped.settings |= REFUSED[name]
    with stopped.unchanged():
        expect(stopped.run(), 6, f"{name}: ", " -> ", "--allow-inexact-resume")
    assert stopped.checkpoints() == [2, 4]


@pytest.mark.parametrize("name", REFUSED_PLANTS)
def test_another_machine_or_library_is_refused(name, stopped):
    stopped.plant = REFUSED_PLANTS[name]
    with stopped.unchanged():
        expect(stopped.run(), 6, f"{name}: ", " -> ")


def edit_row(bench):
    bench.data.write_text(bench.data.read_text().replace("what is 3", "What is 3"))


def edit_template(bench):
    path = bench.model / "chat_template.jinja"
    path.write_text(path.read_text() + "{# a remark #}")


def edit_base(bench):
    edit_json(bench.model / "config.json", rms_norm_eps=1e-4)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (edit_row, "dataset sha256"),
        (edit_template, "chat template sha256"),
        (edit_base, "base model sha256"),
    ],
)
def test_changed_files_are_refused(edit, words, stopped):
    edit(stopped)
    with stopped.unchanged():
        expect(stopped.run(), 6, f"{words}: ", " -> ")


@pytest.mark.parametrize("name", INVARIANT)
def test_what_is_declared_invariant_gives_the_same_bits(name, stopped, world):
    stopped.settings |= INVARIANT[name]
    expect(stopped.run(), 0, num_errors=0)
    assert results_of(stopped.out) == whole(world)


@pytest.mark.parametrize("plant", ["clock_a_year_ahead", "clock_a_year_behind"])
def test_the_clock_is_for_display_only(plant, stopped, world):
    stopped.plant = plant
    expect(stopped.run(), 0, num_errors=0)
    assert results_of(stopped.out) == whole(world)
    assert stopped.checkpoints() == [4, 6]


def test_an_inexact_resume_is_told_and_marked_for_ever(stopped):
    stopped.settings["learning_rate"] = 2e-3
    stopped.flags = ["--allow-inexact-resume"]
    ended = stopped.run()
    expect(ended, 0, num_errors=0)
    assert "warning[W-inexact]" in ended.stderr
    record = read_run(stopped.out)
    assert record is not None
    assert record["exact"] is False
    state = json.loads((stopped.out / "adapter/poros_state/trainer.json").read_text())
    assert state["exact"] is False
