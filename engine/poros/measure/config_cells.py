"""A user's config as one cell of the gate: their model, their data, their settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from poros.config import PorosConfig
from poros.data.batches import Batch
from poros.errors import PorosConfigError
from poros.loading.base_model import DENSE_DTYPES, BaseModel
from poros.loading.byte_source import ByteSource
from poros.loading.text_part import TextPart
from poros.measure.cell_files import load_base, make_cell, resume_at, silent
from poros.measure.plan import Cell
from poros.measure.request import Request, refuse_uncertified
from poros.memory_planner import choose
from poros.memory_sizes import usable_bytes
from poros.training.batching import make_batches
from poros.training.inputs import read_inputs
from poros.training.optimizer import learning_rate_at
from poros.training.planning import fixed_plan, longest_rows, model_sizes, step_shape


def config_cells(request: Request) -> list[Cell]:
    """The one cell of a config.

    Raises:
        PorosConfigError: The gate can't certify it.
    """
    config = PorosConfig(**(request.config or {}))
    refuse_uncertified(config)
    inputs = read_inputs(config, torch.device(request.device), silent)
    base = load_base(
        inputs.source,
        request,
        quantization=config.quantization,
        dtype=getattr(torch, config.torch_dtype),
        layers_per_block=config.layers_per_block,
        attn_implementation=config.attn_implementation,
        trust_remote_code=config.trust_remote_code,
    )
    # Weights that need no quantising have no cache entry: both arms read the model's own folder.
    base_folder = base.cache_entry or _own_folder(inputs.source)
    batches = make_batches(config, inputs)
    path = Path(request.folder) / "batches" / "config.safetensors"
    accumulation = write_steps(path, [batches.next_step() for _ in range(request.num_steps)])
    model_config = json.loads((base_folder / "config.json").read_text(encoding="utf-8"))
    cell = make_cell(
        request, "config", base_folder, model_config, path,
        rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_target_modules,
        accumulation=accumulation, **_settings(config, request),
        **planned(config, base, [len(sample) for sample in inputs.train.samples]),
    )  # fmt: skip
    return [cell]


def planned(config: PorosConfig, base: BaseModel, lengths: Sequence[int]) -> dict[str, Any]:
    """The fields of a cell that the config's plan fills.

    With ``auto`` that is the bare ring, however much is free here: a run that is resident would
    prove nothing.
    """
    plan = fixed_plan(config)
    if isinstance(config.vram_budget, float):
        step = step_shape(config, longest_rows(config, lengths))
        budget_bytes = usable_bytes(round(config.vram_budget * 1e9))
        sizes = model_sizes(base, config)
        plan = choose(budget_bytes, sizes, step, num_slots=config.num_slots).plan
    return dataclasses.asdict(plan)


def _own_folder(source: ByteSource) -> Path:
    """The folder that stock opens as the same model.

    Raises:
        PorosConfigError: It would open the whole of a multimodal checkpoint.
    """
    if isinstance(source, TextPart):
        raise PorosConfigError(
            "stock opens the whole of a multimodal checkpoint, so only its NF4 base has a gate",
            where=source.name,
            remediation="set quantization: nf4, or poros parity --family NAME",
        )
    assert source.folder is not None
    return source.folder


def _settings(config: PorosConfig, request: Request) -> dict[str, Any]:
    rates = tuple(
        learning_rate_at(
            step,
            base=config.learning_rate,
            warmup_steps=min(config.warmup_steps, request.num_steps // 2),
            total_steps=request.num_steps,
            schedule=config.lr_scheduler,
        )
        for step in range(1, request.num_steps + 1)
    )
    return {
        "dropout": config.lora_dropout,
        "batch_form": "packing" if config.packing else "padding",
        "autocast": "bfloat16" if config.autocast else None,
        "adapter_dtype": config.adapter_dtype,
        "seed": config.seed,
        "learning_rates": rates,
        "max_grad_norm": config.max_grad_norm,
        "weight_decay": config.weight_decay,
        "block_size": config.layers_per_block,
        "attn_implementation": config.attn_implementation,
        "precision": config.quantization,
        "dtype": str(_dtype(config)).removeprefix("torch."),
        "prefetch": config.enable_prefetch,
        "host_tier": config.host_tier,
        "preserve_rng": config.preserve_rng_state,
        "resume_at": resume_at(request),
    }


def _dtype(config: PorosConfig) -> torch.dtype:
    """Of the arithmetic: a dense type is its own."""
    arithmetic: torch.dtype = getattr(torch, config.torch_dtype)
    return DENSE_DTYPES.get(config.quantization, arithmetic)


def write_steps(path: Path, steps: list[list[Batch]]) -> int:
    """Write the product's own batches; micro-batches of a step, the same in every step."""
    accumulation = min(map(len, steps))
    tensors: dict[str, Tensor] = {}
    for step, batches in enumerate(steps):
        for micro_batch, batch in enumerate(batches[:accumulation]):
            named = batch.model_inputs(torch.device("cpu")) | {"labels": batch.labels_BT}
            for name, tensor in named.items():
                tensors[f"{step}.{micro_batch}.{name}"] = tensor.contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return accumulation
