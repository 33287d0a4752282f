"""A tiny NF4 model on the ring with adapters, and batches for it."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path
from typing import Any

from peft import PeftModel

from poros.data.batches import StepBatches
from poros.data.samples import IGNORED, Sample
from poros.event_log import read_events
from poros.events import NUMERIC_STEP_FIELDS, StepFinished
from poros.loading.base_model import BaseModel, load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.streaming.attach import attach
from poros.streaming.block_manager import BlockManager
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import CPU, write_model


def tiny_base(folder: Path) -> BaseModel:
    """The base alone, its layers on the host."""
    base = load_base_model(SafetensorsSource(folder), device=CPU, cache=None, emit=lambda _: None)
    place_ends(base, CPU)
    return base


def streamed(
    folder: Path, *, adapter_path: Path | None = None, dropout: float = 0.1
) -> tuple[PeftModel, BlockManager]:
    """A model ready to train."""
    base = tiny_base(folder)
    model = attach_lora(base, rank=4, alpha=8, dropout=dropout, seed=7, adapter_path=adapter_path)
    manager = BlockManager(base.blocks, device=CPU)
    attach(base.layers, manager, device=CPU, drop=is_kv_cache)
    model.train()
    return model, manager


def tiny_samples(num_samples: int = 12) -> list[Sample]:
    """Random tokens of unequal lengths."""
    draw = random.Random(3)
    samples = []
    for sample_id in range(num_samples):
        ids = array("i", (draw.randrange(1, 128) for _ in range(draw.randrange(5, 12))))
        labels = array("i", ids)
        labels[0] = labels[1] = IGNORED
        samples.append(Sample(sample_id, ids, labels, line=sample_id + 1))
    return samples


def tiny_batches(num_samples: int = 12) -> StepBatches:
    """Two micro-batches of two rows a step."""
    return StepBatches(
        tiny_samples(num_samples),
        batch_size=2,
        accumulation=2,
        seed=5,
        packing=False,
        max_seq_length=16,
        pad_token_id=0,
    )


def write_tiny(folder: Path) -> Path:
    """Two layers of llama."""
    return write_model(folder, num_hidden_layers=2)


def write_chat_model(folder: Path) -> Path:
    """Two layers of llama with a tokenizer."""
    write_model(folder, num_hidden_layers=2, vocab_size=264, max_position_embeddings=128)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write_rows(path: Path, num_rows: int = 20) -> Path:
    """Questions and answers."""
    rows = [{"prompt": f"what is {i}?", "completion": f"it is {i * i}."} for i in range(num_rows)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TINY_SETTINGS: dict[str, Any] = {
    "max_seq_length": 64,
    "max_steps": 6,
    "save_steps": 2,
    "per_device_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "warmup_steps": 2,
    "lora_rank": 4,
    "learning_rate": 1e-3,
    "device": "cpu",
    "cpu_threads": 1,
}
"""6 steps, a checkpoint every 2, dropout on."""


def tiny_settings(model: Path, folder: Path) -> dict[str, Any]:
    """A config's values: `TINY_SETTINGS`, and where everything is."""
    return {
        "model_name_or_path": str(model),
        "dataset": str(write_rows(folder / "data.jsonl")),
        "output_dir": str(folder / "out"),
        **TINY_SETTINGS,
        "nf4_cache": str(model.parent / "nf4"),
    }


def results_of(folder: Path) -> dict[str, Any]:
    """What an exact resume must repeat: state bytes and the numbers of every step."""
    adapter = folder / "adapter"
    names = ("adapter_model", "poros_state/optimizer", "poros_state/rng")
    found: dict[str, Any] = {name: (adapter / f"{name}.safetensors").read_bytes() for name in names}
    steps = [e for e in read_events(folder / "events.jsonl") if isinstance(e, StepFinished)]
    found["steps"] = [[getattr(e, key) for key in NUMERIC_STEP_FIELDS] for e in steps]
    return found
