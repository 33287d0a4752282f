"""A tiny trainer, and runs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poros import PorosTrainer

QUICK: dict[str, Any] = {
    "per_device_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "warmup_steps": 1,
    "learning_rate": 1e-2,
    "max_seq_length": 64,
    "device": "cpu",
    "cpu_threads": 1,
    "nf4_cache": "off",
}

ROWS = [{"prompt": f"what is {i}?", "completion": f"it is {i * i}."} for i in range(12)]


def trainer_in(folder: Path, model: Path, **changes: Any) -> PorosTrainer:
    """A silent trainer whose runs lie in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = QUICK | {"output_dir": str(folder / "run"), "lora_rank": 4} | changes
    trainer = PorosTrainer.from_pretrained(str(model), **settings)
    trainer.listeners = []
    return trainer


def bits_of(folder: str | Path) -> bytes:
    """The adapter's tensors, as written."""
    return (Path(folder) / "adapter_model.safetensors").read_bytes()
