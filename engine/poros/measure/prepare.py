"""Making what both arms read, as a process of its own, so that no arm inherits its memory.

`python -m poros.measure.prepare REQUEST.json`: NF4 folders (by the product's loader, once each),
adapters, batches, and the plan.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from poros.architectures import find_architecture
from poros.events import Event
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import ByteSource, SafetensorsSource
from poros.loading.seeded_source import SeededSource, write_checkpoint
from poros.measure import materials
from poros.measure.cells import CPU_LEVELS, compiled_cells_are_few, covering_array
from poros.measure.plan import Cell, Plan, warmed_up_rates, write_plan
from poros.measure.relabel import relabel
from poros.measure.shapes import shape_config
from poros.training.determinism import enforce_determinism

LEARNING_RATE = 1e-3
RANK = {"demo": 4, "shape": 16}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to prepare.

    Args:
        target: ``demo`` (a real small model under four names) or ``shape``.
        folder: Where everything goes, plan.json on top.
        model: The demo model's folder (None: the product's), or the shape's name.
        num_steps: Recorded steps of each cell.
        num_timing_steps: Further steps that are only timed (``shape``).
    """

    target: str
    folder: str
    model: str | None = None
    device: str = "cpu"
    num_threads: int = 1
    num_steps: int = 3
    num_timing_steps: int = 0
    num_layers: int | None = None
    seq_len: int = 512
    batch_size: int = 1
    accumulation: int = 2
    dropout: float = 0.05
    autocast: str | None = None
    block_size: int = 1
    num_slots: int = 2
    compile: bool = False
    gradient_checkpointing: bool = False
    through_files: bool = False
    cap_bytes: int | None = None
    levels: dict[str, Any] | None = None
    """The covering array's factors (None: all), for ``demo``."""


def write_request(request: Request) -> Path:
    """Put the request into its folder; returns the file."""
    folder = Path(request.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "request.json"
    path.write_text(json.dumps(asdict(request), indent=1) + "\n", encoding="utf-8")
    return path


def prepare(request: Request) -> Plan:
    """Make everything the request asks for and write the plan."""
    enforce_determinism(torch.device(request.device))
    torch.set_num_threads(request.num_threads)
    cells = demo_cells(request) if request.target == "demo" else shape_cells(request)
    plan = Plan(
        folder=Path(request.folder),
        device=request.device,
        num_threads=request.num_threads,
        cells=tuple(cells),
        cap_bytes=request.cap_bytes,
    )
    write_plan(plan)
    return plan


def demo_cells(request: Request) -> list[Cell]:
    """The covering array over the demo's model under all its names."""
    folder = Path(request.folder)
    source = Path(request.model) if request.model else _demo_model()
    rows = _rows(source)
    levels = {name: tuple(levels) for name, levels in (request.levels or CPU_LEVELS).items()}
    array = covering_array(levels, compiled_cells_are_few)
    nf4_folders = {
        model: _quantised(
            SafetensorsSource(relabel(source, model, folder / "models" / model)), request
        )
        for model in levels["model"]
    }
    cells = []
    for number, row in enumerate(array):
        nf4_folder = nf4_folders[row["model"]]
        config = json.loads((nf4_folder / "config.json").read_text(encoding="utf-8"))
        cells.append(_demo_cell(request, number, row, nf4_folder, config, rows))
    for dtype in levels["adapter_dtype"]:
        number = next(k for k, cell in enumerate(cells) if cell.adapter_dtype == dtype)
        cells[number] = dataclasses.replace(cells[number], resume_at=_resume_at(request))
    return cells


def shape_cells(request: Request) -> list[Cell]:
    """One cell: random weights in a real shape."""
    assert request.model is not None
    folder = Path(request.folder)
    config = shape_config(request.model, num_layers=request.num_layers)
    source: ByteSource = SeededSource(config, seed=0, name=request.model)
    if request.through_files:
        write_checkpoint(source, folder / "checkpoint", device=torch.device(request.device))
        source = SafetensorsSource(folder / "checkpoint")
    nf4_folder = _quantised(source, request)
    rows = materials.random_rows(
        config["vocab_size"],
        num_rows=request.num_steps * request.accumulation * request.batch_size,
        num_tokens=request.seq_len,
        seed=3,
    )
    path = materials.write_batches(
        folder / "batches" / "shape.safetensors", rows, form="none", num_steps=request.num_steps,
        accumulation=request.accumulation, batch_size=request.batch_size,
    )  # fmt: skip
    settings = {
        key: getattr(request, key)
        for key in ("dropout", "accumulation", "autocast", "block_size", "num_slots", "compile",
                    "num_timing_steps", "gradient_checkpointing")
    }  # fmt: skip
    settings["resume_at"] = _resume_at(request)
    return [_cell(request, request.model, nf4_folder, config, path, **settings)]


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
    return _cell(request, name, nf4_folder, config, path, **row)


def _cell(
    request: Request,
    name: str,
    nf4_folder: Path,
    config: dict[str, Any],
    batches: Path,
    **given: Any,
) -> Cell:
    folder = Path(request.folder)
    architecture = find_architecture(config["model_type"])
    settings: dict[str, Any] = {"model": architecture.model_type} | given
    adapter = f"adapters/{settings['model']}-{settings['dropout']}"
    if not (folder / adapter).exists():
        materials.write_adapter(
            folder / adapter,
            {key: value for key, value in config.items() if key != "quantization_config"},
            targets=architecture.lora_targets,
            rank=RANK[request.target],
            dropout=settings["dropout"],
        )
    return Cell(
        name=name,
        nf4_folder=str(nf4_folder),
        adapter=adapter,
        batches=str(batches.relative_to(folder)),
        layers_path=architecture.layers_path,
        num_steps=request.num_steps,
        learning_rates=warmed_up_rates(LEARNING_RATE, request.num_steps),
        **settings,
    )


def _quantised(source: ByteSource, request: Request) -> Path:
    """The folder of the source's NF4 cache entry, made now if it is not there."""
    started_s = time.perf_counter()
    base = load_base_model(
        source,
        device=torch.device(request.device),
        cache=Path(request.folder) / "nf4",
        emit=_silent,
    )
    assert base.cache_entry is not None, "the NF4 folder could not be written"
    note = {
        "model": source.name,
        "entry": str(base.cache_entry),
        "load_s": time.perf_counter() - started_s,
        "load_device_peak_bytes": base.load_device_peak_bytes,
        "from_cache": base.from_cache,
    }
    with (Path(request.folder) / "loads.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(note) + "\n")
    return base.cache_entry


def _resume_at(request: Request) -> int | None:
    """Where the run is interrupted for claim C: steps must follow, but few will do."""
    return max(1, request.num_steps - 3) if request.num_steps > 1 else None


def _rows(source: Path) -> list[list[int]]:
    if (source / "tokenizer.json").exists():
        return materials.rows_of_text(AutoTokenizer.from_pretrained(source))
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    rows = materials.random_rows(config["vocab_size"], num_rows=7, num_tokens=28, seed=3)
    return [row[: 16 + 5 * k % 13] for k, row in enumerate(rows)]


def _demo_model() -> Path:
    # By name: measure and demo stand on one floor, and only this one caller goes across.
    module = importlib.import_module("poros.demo.model")
    folder: Path = module.demo_model_folder(_silent)
    return folder


def _silent(event: Event) -> None:
    del event


def main() -> None:
    """Prepare what a request file asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("request", type=Path)
    options = parser.parse_args()
    prepare(Request(**json.loads(options.request.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
