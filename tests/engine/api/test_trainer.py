from pathlib import Path

import datasets
import pytest
import torch
from peft import PeftModel
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from poros import PorosConfig, PorosTrainer
from poros.api import asked
from poros.api import trainer as api_trainer
from poros.errors import (
    PorosConfigError,
    PorosDataError,
    PorosModelError,
    PorosOutputError,
    PorosResumeError,
)
from poros.event_log import read_events
from poros.events import StepFinished
from tests.engine.api.five_lines import QUICK, ROWS, bits_of, trainer_in
from tests.engine.training.tiny_run import write_rows


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("data") / "rows.jsonl", 12)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, chat_folder: Path, file: Path
) -> tuple[PorosTrainer, dict, Path]:
    """A trainer after two steps, what train returned, and where it saved."""
    folder = tmp_path_factory.mktemp("trained")
    trainer = trainer_in(folder, chat_folder)
    metrics = trainer.train(str(file), steps=2, eval_dataset=str(file))
    trainer.save(str(folder / "new" / "adapter"))
    return trainer, metrics, folder / "new" / "adapter"


def test_train_returns_the_metrics(trained):
    trainer, metrics, _ = trained
    steps = [
        event
        for event in read_events(Path(metrics["output_dir"]) / "events.jsonl")
        if isinstance(event, StepFinished)
    ]
    assert set(metrics) == {
        "final_loss", "total_steps", "avg_step_time_ms", "steps_per_sec",
        "peak_vram_allocated_gb", "peak_vram_reserved_gb", "eval_loss", "eval_perplexity",
        "adapter_path", "output_dir",
    }  # fmt: skip
    assert metrics["final_loss"] == steps[-1].loss
    assert metrics["total_steps"] == len(steps) == 2
    mean_s = sum(event.duration_s for event in steps) / 2
    assert metrics["avg_step_time_ms"] == pytest.approx(1000 * mean_s)
    assert metrics["steps_per_sec"] == pytest.approx(1 / mean_s)
    assert metrics["peak_vram_allocated_gb"] == metrics["peak_vram_reserved_gb"] == 0
    assert (Path(metrics["adapter_path"]) / "adapter_config.json").is_file()
    assert trainer.config.max_steps == 2


def test_evaluate_gives_the_loss_that_train_ended_with_and_changes_nothing(trained, file):
    trainer, metrics, _ = trained
    state = torch.get_rng_state()
    found = trainer.evaluate(str(file))
    assert found == {
        "eval_loss": metrics["eval_loss"],
        "eval_perplexity": metrics["eval_perplexity"],
    }
    assert torch.equal(torch.get_rng_state(), state)


def test_evaluate_takes_a_data_set_and_a_loader(trained, file):
    trainer, metrics, _ = trained
    of_rows = trainer.evaluate(datasets.Dataset.from_list(ROWS))
    assert of_rows["eval_loss"] == metrics["eval_loss"]
    loader = DataLoader([{"input_ids": torch.arange(1, 9)}] * 2, batch_size=2)
    assert trainer.evaluate(loader)["eval_loss"] > 0


def test_the_saved_adapter_is_the_runs_and_loads_in_peft(trained, chat_folder):
    _, metrics, saved = trained
    assert bits_of(saved) == bits_of(metrics["adapter_path"])
    assert (saved / "poros_state" / "manifest.json").is_file()
    base = AutoModelForCausalLM.from_pretrained(chat_folder, dtype=torch.bfloat16)
    assert isinstance(PeftModel.from_pretrained(base, str(saved)), PeftModel)


def test_save_replaces_an_adapter_and_nothing_else(trained, tmp_path):
    trainer, metrics, saved = trained
    trainer.save(str(saved))
    assert bits_of(saved) == bits_of(metrics["adapter_path"])
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(PorosOutputError, match=r"holds other things \(mine.txt\)"):
        trainer.save(str(tmp_path))
    with pytest.raises(PorosOutputError, match="holds other things"):
        trainer.save(metrics["output_dir"])
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_generate_answers_each_prompt(trained):
    trainer, _, _ = trained
    both = trainer.generate(["what is 2?", "what is 3?"], max_new_tokens=3)
    assert len(both) == 2
    assert len(trainer.generate("what is 2?", max_new_tokens=3)) == 1


def short_at_first(own):
    """The function, but for its first call."""
    shortages = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")]

    def short(*args, **named):
        if shortages:
            raise shortages.pop()
        return own(*args, **named)

    return short


def test_looks_that_run_out_of_memory_are_made_again_under_a_smaller_plan(
    trained, file, monkeypatch, capsys
):
    trainer = trained[0]
    expected = (trainer.generate(["what?"], max_new_tokens=4), trainer.evaluate(str(file)))
    for module, name in ((asked, "answer"), (api_trainer, "evaluate")):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, short_at_first(own))
    again = (trainer.generate(["what?"], max_new_tokens=4), trainer.evaluate(str(file)))
    assert again == expected
    told = [line for line in capsys.readouterr().err.splitlines() if "out of device memory" in line]
    assert [line.split(": ")[2] for line in told] == ["answer", "evaluate"]
    assert ["boundaries to the host" in told[0], "head to the host" in told[1]] == [True, True]


def test_a_data_set_trains_as_its_file_does(trained, tmp_path, chat_folder):
    _, metrics, _ = trained
    trainer = trainer_in(tmp_path, chat_folder)
    rows = datasets.Dataset.from_list(ROWS)
    again = trainer.train(rows, steps=2)
    assert again["final_loss"] == metrics["final_loss"]
    assert "eval_loss" not in again


def test_a_run_goes_on_from_what_save_wrote_with_the_same_bits(tmp_path, chat_folder, file):
    def constant(name: str) -> PorosTrainer:
        return trainer_in(tmp_path / name, chat_folder, lr_scheduler="constant")

    whole, first, second = constant("whole"), constant("first"), constant("second")
    whole.train(str(file), steps=3)
    first.train(str(file), steps=2)
    whole.save(str(tmp_path / "whole.adapter"))
    first.save(str(tmp_path / "first.adapter"))
    metrics = second.train(str(file), steps=3, resume_from=str(tmp_path / "first.adapter"))
    second.save(str(tmp_path / "second.adapter"))
    assert bits_of(tmp_path / "second.adapter") == bits_of(tmp_path / "whole.adapter")
    assert metrics["total_steps"] == 3
    with pytest.raises(PorosResumeError, match="no such checkpoint"):
        constant("third").train(str(file), steps=3, resume_from=str(tmp_path / "nothing"))


def test_a_finished_run_makes_no_step_more(trained, file):
    trainer, metrics, _ = trained
    told = []
    trainer.listeners = [lambda event, line: told.append(event)]
    again = trainer.train(str(file), steps=2, eval_dataset=str(file))
    assert told[-1].already
    assert again["final_loss"] == metrics["final_loss"]
    assert again["avg_step_time_ms"] is again["steps_per_sec"] is None


def test_before_training_the_adapter_adds_nothing(tmp_path, chat_folder, file):
    trainer = trainer_in(tmp_path, chat_folder)
    before = trainer.evaluate(str(file))
    with trainer.model.disable_adapter():
        assert trainer.evaluate(str(file)) == before
    with pytest.raises(PorosConfigError, match="nothing to save"):
        trainer.save(str(tmp_path / "adapter"))


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("quantization", "bf16_bitwise", "quantization"),
        ("lora_rank", 3, "lora_rank"),
        ("lora_alpha", 5, "lora_alpha"),
        ("lora_dropout", 0.0, "lora_dropout"),
        ("lora_target_modules", ["q_proj"], "lora_target_modules"),
        ("block_size", 2, "block_size"),
        ("seed", 7, "seed"),
    ],
)
def test_each_argument_is_a_setting(chat_folder, name, value, field):
    trainer = PorosTrainer.from_pretrained(str(chat_folder), **{name: value})
    given = {"bf16_bitwise": "bf16"}.get(value, value) if isinstance(value, str) else value
    found = getattr(trainer.config, field)
    assert (list(found) if isinstance(found, tuple) else found) == given
    assert trainer.config.model_name_or_path == str(chat_folder)


def test_a_config_wins_over_arguments_and_kwargs_win_over_it(chat_folder):
    config = PorosConfig(lora_rank=3, block_size=2, seed=1, learning_rate=0.5)
    trainer = PorosTrainer.from_pretrained(
        str(chat_folder), lora_rank=99, quantization="bf16", config=config, block_size=1, seed=2
    )
    assert trainer.config.lora_rank == 3
    assert trainer.config.quantization == "nf4"
    assert trainer.config.learning_rate == 0.5
    assert (trainer.config.block_size, trainer.config.seed) == (1, 2)
    assert trainer.config.model_name_or_path == str(chat_folder)


def test_mistakes_are_told_at_once(tmp_path, chat_folder):
    with pytest.raises(PorosConfigError, match="learning_rat"):
        PorosTrainer.from_pretrained(str(chat_folder), learning_rat=1e-4)
    with pytest.raises(PorosModelError, match="no such folder"):
        PorosTrainer.from_pretrained(str(tmp_path / "nowhere"))
    trainer = trainer_in(tmp_path, chat_folder)
    with pytest.raises(PorosDataError, match="several splits"):
        trainer.train(datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}))
    with pytest.raises(PorosDataError, match="a generator is no data"):
        trainer.train(row for row in ROWS)
    assert not (tmp_path / "run").exists()


def test_a_short_loud_run(tmp_path, chat_folder, file, capsys):
    settings = QUICK | {"output_dir": str(tmp_path / "run"), "train_on": "everything"}
    trainer = PorosTrainer.from_pretrained(str(chat_folder), **settings)
    trainer.train(str(file), steps=1, seq_len=24)
    assert "step 1" in capsys.readouterr().out, "progress is printed unless listeners are given"
    [step] = [e for e in read_events(tmp_path / "run" / "events.jsonl") if type(e) is StepFinished]
    assert step.num_tokens == 4 * 24
    assert trainer.config.max_seq_length == 24
