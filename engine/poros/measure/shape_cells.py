"""Cells of a real shape with random weights: on random rows, or on the built-in chat data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from poros.config import PorosConfig
from poros.data.batches import StepBatches
from poros.data.load import load_data
from poros.demo_settings import train_path
from poros.errors import PorosConfigError
from poros.loading.byte_source import ByteSource, SafetensorsSource
from poros.loading.seeded_source import SeededSource, write_checkpoint
from poros.measure import materials
from poros.measure.cell_files import load_base, make_cell, resume_at, silent
from poros.measure.config_cells import planned, write_steps
from poros.measure.plan import Cell
from poros.measure.request import Request
from poros.measure.shapes import shape_config

RANK = 16
CHAT_ROWS = 4
"""Of a padded micro-batch: one row alone would need no padding."""

VARIANTS: dict[str, dict[str, Any]] = {
    "random": {},
    "autocast": {"autocast": "bfloat16"},
    "padding": {"batch_form": "padding"},
    "packing": {"batch_form": "packing"},
}
"""The cells that a shape may have. The last two are of chat data, at its real lengths."""


def shape_cells(request: Request) -> list[Cell]:
    """One cell a variant, all of the same random weights.

    Raises:
        PorosConfigError: Chat data is wanted and no tokenizer is given to read it.
    """
    assert request.model is not None
    folder = Path(request.folder)
    config = shape_config(request.model, num_layers=request.num_layers)
    forms = {name: VARIANTS[name].get("batch_form", "none") for name in request.variants}
    if request.tokenizer is None and set(forms.values()) != {"none"}:
        raise PorosConfigError(
            "chat data needs a tokenizer: a shape has none",
            where="--variants",
            remediation="give --tokenizer FOLDER, such as the demo model's",
        )
    source: ByteSource = SeededSource(config, seed=0, name=request.model)
    if request.through_files:
        write_checkpoint(source, folder / "checkpoint", device=torch.device(request.device))
        source = SafetensorsSource(folder / "checkpoint")
    base = load_base(source, request)
    nf4_folder = base.cache_entry
    assert nf4_folder is not None, "the NF4 folder could not be written"
    settings = {
        key: getattr(request, key)
        for key in ("dropout", "accumulation", "autocast", "block_size", "num_slots", "compile",
                    "host_tier", "num_timing_steps", "gradient_checkpointing")
    }  # fmt: skip
    settings |= {"resume_at": resume_at(request)} | planned(
        _as_config(request), base, [request.seq_len]
    )
    cells = []
    for variant, form in forms.items():
        path = _batches(request, form, config["vocab_size"])
        name = request.model if request.variants == ("random",) else f"{request.model}-{variant}"
        given = settings | VARIANTS[variant]
        cells.append(make_cell(request, name, nf4_folder, config, path, rank=RANK, **given))
    return cells


def _as_config(request: Request) -> PorosConfig:
    """The settings of the shape's run that a plan depends on."""
    budget: Any = request.vram_budget
    return PorosConfig(
        vram_budget=budget,
        num_slots=request.num_slots,
        lora_rank=RANK,
        lora_dropout=request.dropout,
        per_device_batch_size=request.batch_size,
        gradient_accumulation_steps=request.accumulation,
        autocast=request.autocast is not None,
    )


def _batches(request: Request, form: str, vocab_size: int) -> Path:
    path = Path(request.folder) / "batches" / f"shape-{form}.safetensors"
    if form != "none":
        steps = _chat(request, form, vocab_size)
        write_steps(path, [steps.next_step() for _ in range(request.num_steps)])
        return path
    rows = materials.random_rows(
        vocab_size,
        num_rows=request.num_steps * request.accumulation * request.batch_size,
        num_tokens=request.seq_len,
        seed=3,
    )
    return materials.write_batches(
        path, rows, form=form, num_steps=request.num_steps,
        accumulation=request.accumulation, batch_size=request.batch_size,
    )  # fmt: skip


def _chat(request: Request, form: str, vocab_size: int) -> StepBatches:
    prepared = load_data(
        str(train_path()),
        AutoTokenizer.from_pretrained(request.tokenizer),
        split="train",
        max_seq_length=request.seq_len,
        vocab_size=vocab_size,
        emit=silent,
    )
    packing = form == "packing"
    return StepBatches(
        prepared.samples,
        batch_size=1 if packing else CHAT_ROWS,
        accumulation=request.accumulation,
        seed=3,
        packing=packing,
        max_seq_length=request.seq_len,
        pad_token_id=prepared.report.pad_token_id,
    )
