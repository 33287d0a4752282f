"""`poros train --dry-run`: what the run itself would find and refuse, and nothing made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from poros import events
from poros.config import PorosConfig
from poros.config_load import dump_config
from poros.run_folder import holding
from poros.training.session import Session
from tests.engine.command_line import poros_here
from tests.engine.training.tiny_run import tiny_settings


@pytest.fixture(scope="module")
def ran(chat_folder, tmp_path_factory):
    """Settings of a run that was made, and its events."""
    folder = tmp_path_factory.mktemp("ran")
    settings = tiny_settings(chat_folder, folder) | {"eval_dataset": str(folder / "data.jsonl")}
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        Session(PorosConfig(**settings), listeners=[lambda event, _: seen.append(event)]).run()
    torch.use_deterministic_algorithms(False)
    return settings, seen


def dry_run(folder: Path, settings, *words):
    path = folder / "train.yaml"
    path.write_text(dump_config(PorosConfig(**settings)))
    return poros_here("train", str(path), "--dry-run", *words)


def test_it_counts_what_the_run_counts(ran, tmp_path):
    settings, seen = ran
    settings = settings | {"output_dir": str(tmp_path / "out"), "max_steps": None}
    ended = dry_run(tmp_path, settings, "--json")
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)["looked_at"]["data"]
    train, held_out = (event for event in seen if isinstance(event, events.DataPrepared))
    for name, event in (("train", train), ("eval", held_out)):
        assert data[name]["num_samples"] == event.num_samples == 20
        assert data[name]["num_label_tokens"] == event.num_label_tokens
        assert data[name]["shape"] == event.shape
    assert (data["total_steps"], data["device"], data["warnings"]) == (5, "cpu", [])
    assert [path.name for path in tmp_path.iterdir()] == ["train.yaml"]


def test_it_says_what_it_looked_at(ran, tmp_path):
    settings, _ = ran
    lines = dry_run(tmp_path, settings).stdout.splitlines()
    output = settings["output_dir"]
    assert f"output: {output}, a run that goes on from step-000006" in lines
    assert any(": llama, certified, " in line and "no weight" in line for line in lines)
    assert sum(": prompt_completion, 20 rows, 20 samples" in line for line in lines) == 2
    assert "run:    6 steps on cpu" in lines


def test_it_refuses_what_the_run_refuses(ran, tmp_path):
    settings, _ = ran
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": "b"}\n{"prompt"\n')
    for change, code, told in (
        ({"dataset": str(bad), "output_dir": str(tmp_path / "x")}, 3, "bad.jsonl:2"),
        ({"max_seq_length": 256}, 2, "128 positions"),
        ({"dataset": str(bad)}, 7, "the folder belongs to another run"),
        ({"resume": "never"}, 7, "resume is never"),
        ({"resume": "checkpoints/step-9"}, 6, "no such checkpoint, checkpoints/step-9"),
    ):
        ended = dry_run(tmp_path, settings | change)
        assert (ended.returncode, told in ended.stderr) == (code, True), ended.stderr
    with holding(Path(settings["output_dir"])):
        assert "another run holds" in dry_run(tmp_path, settings).stderr


def test_it_needs_no_weights(ran, tmp_path):
    settings, _ = ran
    model = tmp_path / "model"
    shutil.copytree(settings["model_name_or_path"], model)
    weights = model / "model.safetensors"
    header_bytes = int.from_bytes(weights.read_bytes()[:8], "little") + 8
    size_bytes = weights.stat().st_size
    with weights.open("r+b") as file:  # the header alone, and a hole for the rest
        file.truncate(header_bytes)
        file.truncate(size_bytes)
    ended = dry_run(
        tmp_path, settings | {"model_name_or_path": str(model), "output_dir": str(tmp_path / "o")}
    )
    assert ended.returncode == 0, ended.stderr
