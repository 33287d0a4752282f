"""Making what both arms read, as a process of its own, so that no arm inherits its memory.

`python -m poros.measure.prepare REQUEST.json`: NF4 folders (by the product's loader, once each),
adapters, batches, and the plan.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from poros.errors import PorosError
from poros.loading.byte_source import SafetensorsSource
from poros.measure import materials
from poros.measure.cell_files import make_cell, quantised, resume_at, silent
from poros.measure.cells import (
    CPU_LEVELS,
    compiled_cells_are_few,
    covering_array,
    with_state_on_host,
    with_tiers,
)
from poros.measure.config_cells import config_cells
from poros.measure.end_mutants import with_ends_on_host
from poros.measure.family_cells import family_cells
from poros.measure.live_arm import may_be_live, with_a_live_model
from poros.measure.plan import Cell, Plan, write_plan
from poros.measure.relabel import relabel
from poros.measure.request import Request, read_request, write_refusal
from poros.measure.resident_mutants import with_resident_blocks
from poros.measure.running_out import with_shortage
from poros.measure.shape_cells import shape_cells
from poros.training.determinism import enforce_determinism

DEMO_RANK = 4


def prepare(request: Request) -> Plan:
    """Make everything the request asks for and write the plan."""
    enforce_determinism(torch.device(request.device))
    torch.set_num_threads(request.num_threads)
    notes: list[str] = []
    if request.target == "family":
        cells, notes = family_cells(request)
    else:
        makers = {"demo": demo_cells, "shape": shape_cells, "config": config_cells}
        cells = makers[request.target](request)
    plan = Plan(
        folder=Path(request.folder),
        device=request.device,
        num_threads=request.num_threads,
        cells=tuple(cells),
        cap_bytes=request.cap_bytes,
        quick=request.quick,
        memory_map=request.memory_map,
        target=request.target,
        notes=tuple(notes),
    )
    write_plan(plan)
    return plan


def demo_cells(request: Request) -> list[Cell]:
    """The covering array over the demo's model under all its names."""
    folder = Path(request.folder)
    path = Path(request.model) if request.model else _demo_model()
    source = SafetensorsSource(path)
    digest = source.digest()[:16]
    rows = _rows(path)
    levels = {name: tuple(levels) for name, levels in (request.levels or CPU_LEVELS).items()}
    array = with_tiers(with_state_on_host(covering_array(levels, compiled_cells_are_few)))
    nf4_folders = {
        model: quantised(
            SafetensorsSource(relabel(path, model, folder / "models" / f"{model}-{digest}")),
            request,
        )
        for model in levels["model"]
    }
    cells = []
    for number, row in enumerate(array):
        nf4_folder = nf4_folders[row["model"]]
        config = json.loads((nf4_folder / "config.json").read_text(encoding="utf-8"))
        cells.append(_demo_cell(request, number, row, nf4_folder, config, rows))
    for number in _interrupted(cells):
        cells[number] = dataclasses.replace(cells[number], resume_at=resume_at(request))
    plain, num_layers = _plain(cells), source.config["num_hidden_layers"]
    for number in plain[:1]:
        cells[number] = with_ends_on_host(cells[number])
    # Few layers a block: blocks that all have a slot or a place would prove nothing.
    few_layers = sorted(plain[1:], key=lambda number: cells[number].block_size)
    for number in few_layers[:1]:
        resident = with_resident_blocks(cells[number], num_layers)
        num_travelling = -(-num_layers // resident.block_size) - len(resident.resident)
        if num_travelling > resident.num_slots:
            cells[number] = resident
    for number in few_layers[1:2]:
        cells[number] = with_shortage(cells[number])
    for number in [k for k in few_layers[2:] if may_be_live(cells[k])][:1]:
        cells[number] = with_a_live_model(cells[number])
    return cells


def _plain(cells: Sequence[Cell]) -> Sequence[int]:
    """The cells without a task of their own, which can have one."""
    return [k for k, c in enumerate(cells) if k and c.resume_at is None and not c.compile]


def _interrupted(cells: Sequence[Cell]) -> set[int]:
    """The cells that claim C is about: the first of each adapter's type, and of each plan."""
    kinds: dict[object, int] = {}
    for number, cell in enumerate(cells):
        kinds.setdefault(cell.adapter_dtype, number)
        on_host = (cell.moments_on_host, cell.adapters_on_host, cell.boundaries_on_host)
        kinds.setdefault(on_host, number)
    return set(kinds.values())


def _demo_cell(
    request: Request,
    number: int,
    row: dict[str, Any],
    nf4_folder: Path,
    config: dict[str, Any],
    rows: Sequence[list[int]],
) -> Cell:
    form, accumulation = row["batch_form"], row["accumulation"]
    compiled = row["compile"]
    kind = f"{form}-{accumulation}-fixed" if compiled else f"{form}-{accumulation}"
    path = Path(request.folder) / "batches" / f"{kind}.safetensors"
    if not path.exists():
        materials.write_batches(
            path, rows, form=form, num_steps=request.num_steps, accumulation=accumulation,
            same_shape=compiled,
        )  # fmt: skip
    name = f"{number:02d}-{row['model']}"
    return make_cell(request, name, nf4_folder, config, path, rank=DEMO_RANK, **row)


def _rows(source: Path) -> list[list[int]]:
    if (source / "tokenizer.json").exists():
        return materials.rows_of_text(AutoTokenizer.from_pretrained(source))
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    rows = materials.random_rows(config["vocab_size"], num_rows=7, num_tokens=28, seed=3)
    return [row[: 16 + 5 * k % 13] for k, row in enumerate(rows)]


def _demo_model() -> Path:
    # By name: measure and demo stand on one floor, and only this one caller goes across.
    module = importlib.import_module("poros.demo.model")
    folder: Path = module.demo_model_folder(silent)
    return folder


def main() -> None:
    """Prepare what a request file asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("request", type=Path)
    options = parser.parse_args()
    try:
        prepare(read_request(options.request))
    except PorosError as error:
        write_refusal(options.request.parent, error)
        sys.exit(error.line())


if __name__ == "__main__":
    main()
