"""A tiny NF4 model on the ring with adapters, and batches for it."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import torch
from peft import PeftModel

from poros.data.batches import StepBatches
from poros.data.samples import IGNORED, Sample
from poros.loading.base_model import BaseModel, load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.streaming.attach import attach
from poros.streaming.block_manager import BlockManager
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora
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


def fix_threads() -> None:
    """One thread: what tests of bits need on any machine."""
    torch.set_num_threads(1)
