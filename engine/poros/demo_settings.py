"""The demo's run as settings, and the files of its built-in data; torch-free, for command and app.

The model learns short answers in the voice of a lighthouse keeper.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

NUM_STEPS = 40
ANSWER_TOKENS = 40
"""The longest of the keeper's answers has 34."""
WHEEL_BYTES = 92_871_040
"""Of the package that the model comes in."""
MODEL_FOLDER = "smollm2-135m-instruct"
"""In the user's cache, under ``models``."""
HUB_COPY_FILE = "smollm2-135m-instruct-hub.json"
"""Beside it: says where the Hub's own copy lies, if that was fetched in its place."""


def train_path() -> Path:
    """The JSONL file of the rows to train on."""
    return _path("voice.jsonl")


def held_out_path() -> Path:
    """The JSONL file of the rows that no training sees."""
    return _path("voice_heldout.jsonl")


def is_demo_data(dataset: str | None) -> bool:
    """Whether a config's data are the built-in ones."""
    return dataset is not None and Path(dataset) == train_path()


def demo_settings(model: str, output_dir: str, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """The demo's config, by key.

    Args:
        model: Folder of its model.
        output_dir: The run's folder.
        num_steps: Optimizer steps.
    """
    return {
        "model_name_or_path": model,
        "dataset": str(train_path()),
        "eval_dataset": str(held_out_path()),
        "samples": _questions(),
        "sample_tokens": ANSWER_TOKENS,
        "learning_rate": 2e-3,
        "weight_decay": 0.0,
        "warmup_steps": 4,
        "max_steps": num_steps,
        "per_device_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_seq_length": 128,
        "logging_steps": 5,
        "output_dir": output_dir,
    }


def _questions() -> tuple[str, ...]:
    lines = held_out_path().read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line)["messages"][0]["content"] for line in lines)


def _path(name: str) -> Path:
    return Path(str(importlib.resources.files("poros.demo").joinpath(name)))
