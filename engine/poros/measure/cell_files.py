"""A cell and the files it needs: the NF4 folder by the product's loader, and the adapter."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from poros.events import Event
from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import ByteSource
from poros.loading.probe import architecture_of
from poros.loading.text_part import open_source
from poros.measure import materials
from poros.measure.plan import Cell, warmed_up_rates
from poros.measure.request import Request

LEARNING_RATE = 1e-3


def silent(event: Event) -> None:
    """Take an event and say nothing."""


def make_cell(
    request: Request,
    name: str,
    base_folder: Path,
    config: dict[str, Any],
    batches: Path,
    rank: int,
    alpha: int | None = None,
    targets: Sequence[str] | str | None = None,
    **given: Any,
) -> Cell:
    """One cell, with its adapter written if it is not there yet."""
    folder = Path(request.folder)
    architecture = architecture_of(config)
    rates = warmed_up_rates(LEARNING_RATE, request.num_steps)
    settings: dict[str, Any] = {"model": architecture.model_type, "learning_rates": rates} | given
    wanted: dict[str, Any] = {
        "config": {key: value for key, value in config.items() if key != "quantization_config"},
        "targets": targets or architecture.lora_targets,
        "rank": rank,
        "alpha": alpha,
        "dropout": settings["dropout"],
    }
    key = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    adapter = f"adapters/{settings['model']}-{key[:16]}"
    if not (folder / adapter).exists():
        materials.write_adapter(folder / adapter, **wanted)
    return Cell(
        name=name,
        base_folder=str(base_folder),
        adapter=adapter,
        batches=str(batches.relative_to(folder)),
        layers_path=architecture.layers_path,
        num_steps=request.num_steps,
        **settings,
    )


def open_checkpoint(folder: Path) -> ByteSource:
    """A checkpoint's bytes; of a multimodal one, its text part's."""
    return open_source(folder)


def quantised(source: ByteSource, request: Request, **settings: Any) -> Path:
    """The folder of the source's NF4 cache entry, made now if it is not there."""
    entry = load_base(source, request, **settings).cache_entry
    assert entry is not None, "the NF4 folder could not be written"
    return entry


def load_base(source: ByteSource, request: Request, **settings: Any) -> BaseModel:
    """The source's model, NF4 by way of its cache entry; `settings` go to `load_base_model`."""
    started_s = time.perf_counter()
    base = load_base_model(
        source,
        device=torch.device(request.device),
        cache=Path(request.folder) / "nf4",
        emit=silent,
        **settings,
    )
    note = {
        "model": Path(source.name).name,
        "entry": base.cache_entry.name if base.cache_entry else None,
        "load_s": time.perf_counter() - started_s,
        "load_device_peak_bytes": base.load_device_peak_bytes,
        "from_cache": base.from_cache,
    }
    with (Path(request.folder) / "loads.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(note) + "\n")
    return base


def resume_at(request: Request) -> int | None:
    """Where the run is interrupted for claim C: steps must follow, but few will do."""
    if request.quick or request.num_steps < 2:
        return None
    return max(1, request.num_steps - 3)
