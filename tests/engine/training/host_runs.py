"""The same steps with the optimizer's state here or there, and what they observe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn

from poros.loading.base_model import load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.measure.fingerprint import first_difference
from poros.memory_plan import MemoryPlan
from poros.streaming.attach import attach
from poros.streaming.block_manager import BlockManager
from poros.training.host_adamw import make_planned_optimizer, travelling_adapters
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora, trainable_params
from poros.training.optimizer import AdapterAdamW
from poros.training.train_step import train_step
from tests.engine.training.tiny_run import CPU, tiny_batches

STOCK = MemoryPlan()
MOMENTS = MemoryPlan(moments_on_host=True)
ADAPTERS = MemoryPlan(moments_on_host=True, adapters_on_host=True)


@dataclass
class Run:
    """A model that trains, and all that its steps showed."""

    model: PeftModel
    layers: list[nn.Module]
    params: list[tuple[str, nn.Parameter]]
    optimizer: AdapterAdamW
    manager: BlockManager
    device: torch.device = CPU
    autocast: bool = False
    seen: dict[str, Tensor] = field(default_factory=dict)
    batches: Iterator = field(default_factory=lambda: steps_of(tiny_batches()))

    def step(self, number: int, **options) -> None:
        def observe(name: str, tensor: Tensor) -> None:
            self.seen[f"{number}.{name}"] = tensor.detach().cpu().clone()

        train_step(
            self.model, self.params, self.optimizer, next(self.batches), device=self.device,
            learning_rate=1e-2 / (number + 1), max_grad_norm=0.3, observe=observe,
            autocast_dtype=torch.bfloat16 if self.autocast else None, **options,
        )  # fmt: skip


def steps_of(batches) -> Iterator:
    while True:
        yield batches.next_step()


def open_run(
    folder: Path, plan: MemoryPlan, *, layers_per_block: int = 1, dtype=torch.float32,
    autocast: bool = False, targets=None, adapter_path: Path | None = None,
    device: torch.device = CPU,
) -> Run:  # fmt: skip
    base = load_base_model(
        SafetensorsSource(folder), device=device, cache=None, emit=lambda _: None,
        layers_per_block=layers_per_block,
    )  # fmt: skip
    place_ends(base, device)
    model = attach_lora(
        base, rank=4, alpha=8, dropout=0.1, seed=7, dtype=dtype, targets=targets,
        adapter_path=adapter_path,
    )  # fmt: skip
    params = trainable_params(model)
    if adapter_path is None:
        generator = torch.Generator().manual_seed(2)
        with torch.no_grad():  # PEFT's zeros would leave half of the gradients zero
            for _, weight in params:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    optimizer = make_planned_optimizer(
        plan, params, base.layers, layers_per_block=layers_per_block, weight_decay=0.01,
        device=device,
    )  # fmt: skip
    manager = BlockManager(base.blocks, device=device)
    attach(
        base.layers, manager, device=device, layers_per_block=layers_per_block,
        drop=is_kv_cache, travelling=travelling_adapters(optimizer), model=base.model,
    )  # fmt: skip
    model.train()
    torch.manual_seed(11)
    return Run(model, base.layers, params, optimizer, manager, device, autocast)


def observed(
    folder: Path, plan: MemoryPlan, *, num_steps: int = 3, **settings
) -> dict[str, Tensor]:
    run = open_run(folder, plan, **settings)
    for number in range(num_steps):
        run.step(number)
    return run.seen


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left
    assert first_difference(left, right) is None
