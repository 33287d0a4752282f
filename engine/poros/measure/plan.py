"""The plan folder that both arms of the gate read: what every cell is and where its bytes lie."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One setting under which the streamed run must equal the resident one.

    ``base_folder`` is what the reference opens: packed NF4 or dense weights of a text model.
    Fields from ``block_size`` on concern the streamed arm alone: they may change no bit.
    """

    name: str
    model: str
    base_folder: str
    adapter: str
    batches: str
    layers_path: str
    family: str = ""
    """The name for ``--family``."""
    precision: str = "nf4"
    """What the base is held in: a value of the setting ``quantization``."""
    dropout: float = 0.0
    accumulation: int = 1
    attn_implementation: str = "sdpa"
    dtype: str = "bfloat16"
    batch_form: str = "none"
    autocast: str | None = None
    use_cache: bool = True
    compile: bool = False
    adapter_dtype: str = "float32"
    seed: int = 1234
    num_steps: int = 3
    num_timing_steps: int = 0
    learning_rates: tuple[float, ...] = ()
    max_grad_norm: float = 1.0
    weight_decay: float = 0.01
    gradient_checkpointing: bool = False
    block_size: int = 1
    num_slots: int = 2
    resident: tuple[int, ...] = ()
    """Blocks with a place of their own beside the ring."""
    prefetch: bool = True
    preserve_rng: bool = True
    head_on_host: bool = False
    """The head visits the device for its loss, which is computed in chunks of rows."""
    embeddings_on_host: bool = False
    head_prefetch: bool = True
    """The head comes while the last blocks compute."""
    loss_chunk_rows: int | None = None
    """Rows of such a chunk; None: as many as the product takes."""
    moments_on_host: bool = False
    adapters_on_host: bool = False
    """Weights and gradients; moments then are on the host too."""
    boundaries_on_host: bool = False
    """Each layer's hidden states wait there for the layer's backward."""
    runs_out_at: int | None = None
    """The step, from 0, in which memory runs out in a backward; it is made again, and the run goes
    on, with all on the host that can be."""
    host_tier: str = "auto"
    """Where the blocks wait: a value of the setting of that name."""
    prepared: bool = False
    """Its model is loaded by transformers, and `poros.prepare` streams it."""
    resume_at: int | None = None
    """The step after which the streamed arm saves a checkpoint, for claim C."""
    streamed_folder: str = ""
    """What the streamed arm opens, if not ``base_folder``: the checkpoint that it is part of."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All cells of one gate run and the settings that hold for both arms."""

    folder: Path
    device: str
    num_threads: int
    cells: tuple[Cell, ...]
    cap_bytes: int | None = None
    """A hard limit on the streamed arm's device allocator."""
    quick: bool = False
    """Neither a second reference run nor stock's time without determinism."""
    dump: dict[str, Any] | None = field(default=None)
    """One item whose values both arms write out: cell, step, item, folder."""
    memory_map: bool = False
    """The streamed arm writes down what lies in memory at the peak of its recorded steps."""
    target: str = ""
    """The request's."""
    notes: tuple[str, ...] = ()
    """What was left out or refused while preparing, and why; shown with the verdicts."""

    def cell(self, name: str) -> Cell:
        """The cell of that name."""
        return next(cell for cell in self.cells if cell.name == name)

    def memory_map_path(self, cell: Cell) -> Path:
        """Where the streamed arm writes it."""
        return self.folder / f"memory-map-{cell.name.replace('/', '-')}.json"

    def checkpoint(self, cell: Cell) -> Path:
        """Where the streamed arm saves it."""
        return self.folder / "checkpoints" / cell.name.replace("/", "-")


def write_plan(plan: Plan) -> Path:
    """Write plan.json into the plan's folder; returns the folder."""
    record = asdict(plan) | {"folder": str(plan.folder)}
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / PLAN_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return plan.folder


def read_plan(folder: Path) -> Plan:
    """The plan that `write_plan` wrote."""
    record = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
    cells = tuple(
        Cell(**cell | {key: tuple(cell[key]) for key in ("learning_rates", "resident")})
        for cell in record.pop("cells")
    )
    notes = tuple(record["notes"])
    return Plan(**record | {"cells": cells, "folder": Path(record["folder"]), "notes": notes})


def warmed_up_rates(base: float, num_steps: int) -> tuple[float, ...]:
    """A rate per step that changes from step to step, so that a lost schedule shows."""
    return tuple(base * min(1.0, (step + 1) / 3) * (1 - 0.02 * step) for step in range(num_steps))
