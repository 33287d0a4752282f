"""A cell whose model is loaded by transformers, as a user does, and then prepared."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from poros.arch_registry import find_architecture
from poros.dropin.prepare import Prepared, find_prepared, prepare_on
from poros.loading.base_model import BaseModel
from poros.measure.plan import Cell, Plan
from poros.training.lora import attach_lora

_ON_HOST = (
    "head_on_host", "embeddings_on_host", "moments_on_host", "adapters_on_host",
    "boundaries_on_host",
)  # fmt: skip


class Live(NamedTuple):
    """A prepared model, and its parts where the arms look for them."""

    base: BaseModel
    model: PeftModel
    prepared: Prepared


def with_a_live_model(cell: Cell) -> Cell:
    """The cell with a model that is prepared; such a one has nothing but blocks on the host."""
    nothing: dict[str, Any] = dict.fromkeys(_ON_HOST, False)
    return dataclasses.replace(cell, prepared=True, num_slots=2, host_tier="auto", **nothing)


def may_be_live(cell: Cell) -> bool:
    """Whether nothing else is this cell's task."""
    return cell.host_tier == "auto" and not any(getattr(cell, name) for name in _ON_HOST)


def open_prepared(plan: Plan, cell: Cell, device: torch.device) -> Live:
    """Load the cell's base and adapter without Poros, and prepare them."""
    stock = AutoModelForCausalLM.from_pretrained(
        cell.base_folder,
        attn_implementation=cell.attn_implementation,
        dtype=getattr(torch, cell.dtype),
        device_map={"": device},
    )
    layers: Any = stock.get_submodule(cell.layers_path)
    base = BaseModel(
        model=stock,
        layers=list(layers),
        blocks=[],
        architecture=find_architecture(stock.config.model_type),
        resident_bytes=0,
        load_device_peak_bytes=0,
        from_cache=False,
        prequantised=True,
        digest="",
    )
    model = attach_lora(
        base,
        adapter_path=plan.folder / cell.adapter,
        dtype=getattr(torch, cell.adapter_dtype),
    )
    model.config.use_cache = cell.use_cache
    model.train()
    return prepare_live(base, model, cell, device)


def prepare_live(base: BaseModel, model: PeftModel, cell: Cell, device: torch.device) -> Live:
    """Prepare a model as the cell has it; its blocks become the base's."""
    settings = {
        "block_size": cell.block_size,
        "enable_prefetch": cell.prefetch,
        "preserve_rng_state": cell.preserve_rng,
        "arch_check": "error",
        "deterministic": True,
        "managed_parameter_filter": None,
    }
    prepare_on(model, device, settings)
    prepared = find_prepared(model)
    assert prepared is not None
    base.blocks = prepared.blocks
    return Live(base, model, prepared)
