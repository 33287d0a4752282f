"""The cells of `poros parity --family`: a tiny random model of each family, in a few ways each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers

from poros.config import PorosConfig
from poros.errors import PorosConfigError, PorosParityError
from poros.measure import materials
from poros.measure.cell_files import make_cell, open_checkpoint, quantised, resume_at
from poros.measure.end_mutants import with_ends_on_host
from poros.measure.family_models import WINDOW, TinyModel, families_of, too_old, write_model
from poros.measure.plan import Cell
from poros.measure.request import Request
from poros.measure.resident_mutants import with_resident_blocks
from poros.measure.running_out import with_shortage
from poros.training.inputs import refuse_recurrent_packing

RANK = 4
ACCUMULATION = 2
DROPOUT = 0.05
RUNS_OUT = "gemma4"
"""The family with a step that runs out of memory: its layers share more with others than any's."""


@dataclass(frozen=True, kw_only=True)
class _Way:
    precision: str
    form: str
    block_size: int
    autocast: str | None = None
    interrupted: bool = False
    """Saved and continued, for claim C."""
    ends_on_host: bool = False
    """Head and embeddings, and a loss of several chunks."""
    moments_on_host: bool = False
    adapters_on_host: bool = False
    some_resident: bool = False
    """Every fourth block, at least one."""
    boundaries_on_host: bool = False
    host_tier: str = "auto"

    @property
    def name(self) -> str:
        return f"{self.precision}/{'plain' if self.form == 'none' else self.form}"


_PADDED = _Way(precision="nf4", form="padding", block_size=1, interrupted=True)
_UNPACKED = _Way(precision="nf4", form="none", block_size=3, ends_on_host=True, host_tier="disk")
_PACKED = replace(_UNPACKED, form="packing")
_DENSE = _Way(
    precision="bf16",
    form="none",
    block_size=3,
    autocast="bfloat16",
    ends_on_host=True,
    adapters_on_host=True,
    boundaries_on_host=True,
)
_DENSE_PADDED = _Way(
    precision="bf16",
    form="padding",
    block_size=1,
    moments_on_host=True,
    some_resident=True,
    host_tier="pageable",
)


def family_cells(request: Request) -> tuple[list[Cell], list[str]]:
    """The cells, and what was refused or left out on the way.

    Raises:
        PorosConfigError: This transformers has none of the families asked for.
        PorosParityError: Packing is not refused for a family that can't have it.
    """
    assert request.model is not None
    cells: list[Cell] = []
    notes: list[str] = []
    for model in families_of(request.model):
        if too_old(model):
            least, found = model.spec.min_transformers, transformers.__version__
            notes.append(f"{model.family} left out: it needs transformers {least}, this is {found}")
            continue
        if not packs(model):
            notes.append(_refused_packing(model))
        cells += _cells(request, model)
    if not cells:
        raise PorosConfigError(
            notes[0], where="--family", remediation='pip install -U "transformers"'
        )
    return cells, list(dict.fromkeys(notes))


def packs(model: TinyModel) -> bool:
    """Whether documents of a row stay apart: no state along it, and a mask of bools."""
    return not model.spec.recurrent and "sdpa" in model.spec.attentions


def _ways(model: TinyModel) -> tuple[_Way, ...]:
    packed = _PACKED if packs(model) else _UNPACKED
    return (_PADDED, packed, _DENSE, _DENSE_PADDED)


def _cells(request: Request, model: TinyModel) -> list[Cell]:
    name = "-".join(filter(None, (model.family, model.variant)))
    whole, text = write_model(model, Path(request.folder) / "models" / name)
    attention = model.spec.attentions[0]
    packed = quantised(open_checkpoint(whole), request, attn_implementation=attention)
    config = json.loads((text / "config.json").read_text(encoding="utf-8"))
    cells = [
        make_cell(
            request,
            "/".join(filter(None, (model.family, way.name, model.variant))),
            packed if way.precision == "nf4" else text,
            config,
            _batches(request, way.form),
            rank=RANK,
            targets=(*model.spec.lora_targets, *model.more_targets),
            family=model.family,
            precision=way.precision,
            streamed_folder="" if way.precision == "nf4" or whole == text else str(whole),
            dropout=DROPOUT,
            accumulation=ACCUMULATION,
            batch_form=way.form,
            attn_implementation=attention,
            autocast=way.autocast,
            block_size=way.block_size,
            moments_on_host=way.moments_on_host,
            adapters_on_host=way.adapters_on_host,
            boundaries_on_host=way.boundaries_on_host,
            host_tier=way.host_tier,
            resume_at=resume_at(request) if way.interrupted else None,
        )
        for way in _ways(model)
    ]
    cells = [_planned(cell, way, config) for cell, way in zip(cells, _ways(model), strict=True)]
    if model.family == RUNS_OUT:
        cells[-1] = with_shortage(cells[-1])
    return cells


def _planned(cell: Cell, way: _Way, config: Mapping[str, Any]) -> Cell:
    if way.ends_on_host:
        cell = with_ends_on_host(cell)
    if way.some_resident:
        cell = with_resident_blocks(cell, config["num_hidden_layers"])
    return cell


def _batches(request: Request, form: str) -> Path:
    """Sequences beyond the window; packed rows within it, since their mask knows of none."""
    path = Path(request.folder) / "batches" / f"family-{form}.safetensors"
    if not path.exists():
        rows = materials.random_rows(160, num_rows=7, num_tokens=30, seed=3)
        longest = WINDOW // 2 if form == "packing" else 30
        rows = [row[: longest - 2 * k % 7] for k, row in enumerate(rows)]
        materials.write_batches(
            path, rows, form=form, num_steps=request.num_steps, accumulation=ACCUMULATION
        )
    return path


def _refused_packing(model: TinyModel) -> str:
    """What the product says to a config that packs."""
    attention: Any = model.spec.attentions[0]
    try:
        config = PorosConfig(packing=True, attn_implementation=attention)
        refuse_recurrent_packing(config, model.spec, where=model.family)
    except PorosConfigError as refusal:
        return f"{model.family}: {refusal}"
    raise PorosParityError(
        f"{model.family} can't keep documents apart, but packing is not refused",
        remediation="see poros.training.inputs.refuse_recurrent_packing",
    )
