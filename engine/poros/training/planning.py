"""The plan of a run: from the loaded base, the card's free memory and rates, and earlier runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from poros.config import PorosConfig
from poros.errors import PorosOOMError
from poros.events import Event, PlanMade, PlanMeasured, PlanShrunk, StepFinished, Warned
from poros.loading.base_model import BaseModel
from poros.loading.record_check import resident_paths
from poros.memory_plan import MemoryPlan, memory_plan
from poros.memory_planner import Estimate, Rates, choose, estimate, least_bytes, smallest
from poros.memory_sizes import LinearShape, ModelSizes, StepShape, peak_bytes, usable_bytes
from poros.plan_history import (
    About,
    Measured,
    corrected,
    keep_run,
    keep_shortage,
    key_of,
    read_runs,
    run_of,
)
from poros.told_sizes import told_size
from poros.training.cap import hold_to
from poros.training.rates import link_rate, multiply_rate

Emit = Callable[[Event], None]

DESKTOP_BYTES = 256 * 2**20
DESKTOP_PART = 0.02
"""Left free by ``auto``, at least so much, for what the desktop and others may come to need."""
STEPS_BEFORE_MEASURED = 3
"""The first ones also allocate, compile and warm up."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A run's plan and what it was made from.

    Attributes:
        expected: The plan with its estimates.
        sizes: Of the model.
        step: The longest step.
        budget_bytes: What the allocator may give out; None: no limit was asked for.
        key: Of the runs that have measured the same.
        from_measured: Whether a run of this very plan is known.
        about: What is kept beside the key.
    """

    expected: Estimate
    sizes: ModelSizes
    step: StepShape
    budget_bytes: int | None
    key: str
    from_measured: bool
    about: About

    @property
    def plan(self) -> MemoryPlan:
        """What lies where."""
        return self.expected.plan

    @property
    def estimated_bytes(self) -> int:
        """The peak without what earlier runs know."""
        return peak_bytes(self.plan, self.sizes, self.step)

    def event(self) -> PlanMade:
        """For the event file."""
        plan, found = self.plan, self.expected
        return PlanMade(
            num_blocks=self.sizes.num_blocks,
            resident=list(plan.resident),
            num_slots=min(plan.num_slots, self.sizes.num_blocks - len(plan.resident)),
            on_host=[
                field.name.removesuffix("_on_host")
                for field in dataclasses.fields(plan)
                if field.name.endswith("_on_host") and getattr(plan, field.name)
            ],
            head_prefetch=plan.head_on_host and plan.head_prefetch,
            num_rows=self.step.num_rows,
            budget_bytes=self.budget_bytes,
            peak_bytes=found.peak_bytes,
            peak_phase=found.phase,
            device_bytes=found.device_bytes,
            copied_bytes=found.copied_bytes,
            step_s=found.step_s,
            bottleneck=found.bottleneck,
            from_measured=self.from_measured,
        )


def plan_run(
    config: PorosConfig,
    base: BaseModel,
    *,
    device: torch.device,
    num_rows: int,
    emit: Emit,
) -> Planned:
    """Choose the plan of a run, tell it, and hold the allocator to a budget in GB.

    Args:
        config: Its settings.
        base: Loaded, its ends still on the host.
        device: Where it trains.
        num_rows: Tokens of its longest micro-batch.
        emit: Is told the plan.

    Raises:
        PorosOOMError: Not even what is certain of the smallest plan fits.
    """
    sizes = model_sizes(base, config)
    step = step_shape(config, num_rows)
    on_cuda = device.type == "cuda"
    key = key_of(_facts(config, base, device, step))
    runs = read_runs(key) if on_cuda else []
    rates = machine_rates(device, sizes, step)
    budget_bytes = room_bytes(config, device)

    def correct(plan: MemoryPlan, peak: int) -> int:
        return corrected(plan, peak, runs)

    plan = fixed_plan(config)
    if budget_bytes is not None:
        try:
            plan = choose(
                usable_bytes(budget_bytes), sizes, step,
                num_slots=config.num_slots, rates=rates, correct=correct,
            ).plan  # fmt: skip
        except PorosOOMError as error:
            plan = _tight(error, budget_bytes, sizes, step, emit=emit, refuses=on_cuda)
    expected = estimate(plan, sizes, step, rates=rates, correct=correct)
    if base.host_tier == "disk":
        expected = _from_disk(expected)
    if (known := run_of(plan, runs)) is not None:
        expected = replace(expected, step_s=known.step_s)
    if not on_cuda:
        expected = replace(expected, peak_bytes=0, device_bytes=0)
    about = About(
        model=config.model_name_or_path,
        card=_card_name(device),
        num_rows=step.num_rows,
        rank=config.lora_rank,
    )
    planned = Planned(expected, sizes, step, budget_bytes, key, known is not None, about)
    emit(planned.event())
    hold_to(config.vram_budget, device)
    return planned


def _tight(
    error: PorosOOMError,
    budget_bytes: int,
    sizes: ModelSizes,
    step: StepShape,
    *,
    emit: Emit,
    refuses: bool,
) -> MemoryPlan:
    """The smallest plan, where only estimates say that it does not fit."""
    plan = smallest(MemoryPlan())
    if refuses and least_bytes(plan, sizes, step) > budget_bytes:
        raise error
    emit(Warned(code="tight-plan", message=f"{error.message}: trying the smallest plan"))
    return plan


def fixed_plan(config: PorosConfig) -> MemoryPlan:
    """The plan of a setting that asks for no amount: the bare ring, or all on the host."""
    plan = memory_plan(config.vram_budget)
    return plan if config.vram_budget == "min" else replace(plan, num_slots=config.num_slots)


def model_sizes(base: BaseModel, config: PorosConfig) -> ModelSizes:
    """What the planner wants to know of a loaded base and the config's adapter."""
    targets = config.lora_target_modules or base.architecture.lora_targets
    layers = [_linears(layer, f"{base.architecture.layers_path}.{k}", targets)
              for k, layer in enumerate(base.layers)]  # fmt: skip
    head = base.model.get_output_embeddings()
    modules = dict(base.model.named_modules())
    ends = {path: modules[path] for path in resident_paths(base.model, base.architecture)}
    embeddings = [module for module in ends.values() if isinstance(module, nn.Embedding)]
    tied = head is not None and any(module.weight is head.weight for module in embeddings)
    head_bytes = _bytes_of(head) if head is not None else 0
    embedding_bytes = sum(map(_bytes_of, embeddings))
    text = base.model.config.get_text_config()
    dtype: torch.dtype = getattr(torch, config.adapter_dtype)
    return ModelSizes(
        block_bytes=tuple(block.num_bytes for block in base.blocks),
        num_layers=len(base.layers),
        linears=tuple(max(layers, key=_num_weights)),
        num_weights=sum(map(_num_weights, layers)),
        num_adapter_weights=config.lora_rank
        * sum(x.num_inputs + x.num_outputs for layer in layers for x in layer if x.adapted),
        adapter_weight_bytes=dtype.itemsize,
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        head_bytes=head_bytes,
        embedding_bytes=embedding_bytes,
        tied=tied,
        other_bytes=base.resident_bytes - embedding_bytes - (0 if tied else head_bytes),
    )


def step_shape(config: PorosConfig, num_rows: int) -> StepShape:
    """What the planner wants to know of a step."""
    return StepShape(
        num_rows=num_rows,
        accumulation=config.gradient_accumulation_steps,
        dropout=config.lora_dropout > 0,
        short_adapters=config.autocast or config.adapter_dtype == "bfloat16",
    )


def longest_rows(config: PorosConfig, lengths: Sequence[int]) -> int:
    """Tokens of the longest micro-batch that samples of these lengths can make."""
    longest = config.max_seq_length if config.packing else max(lengths)
    return config.per_device_batch_size * longest


def machine_rates(device: torch.device, sizes: ModelSizes, step: StepShape) -> Rates:
    """Of link and arithmetic; unknown on the CPU."""
    if device.type != "cuda":
        return Rates()
    widest = max((x.num_outputs for x in sizes.linears), default=sizes.hidden_size)
    rates = Rates(
        link_rate(device), multiply_rate(device, step.num_rows, sizes.hidden_size, widest)
    )
    torch.cuda.empty_cache()
    return rates


class PlanWatch:
    """Hears the steps of a run, tells what the plan really took, and keeps it for the next one.

    Args:
        planned: The run's plan.
        steps_per_epoch: After as many steps every sample was seen.
        emit: Is told once, after the first steps.
    """

    def __init__(self, planned: Planned, *, steps_per_epoch: int, emit: Emit) -> None:
        """Nothing is measured yet."""
        self._holds = True
        self._planned, self._steps_per_epoch, self._emit = planned, steps_per_epoch, emit
        self._plan = planned.plan
        self._num_steps = 0
        self._peak_bytes = self._reserved_bytes = 0
        self._step_s = 0.0

    def hear(self, event: Event) -> None:
        """Take a step's measurements, as long as the plan holds, and plans that ran out."""
        if isinstance(event, PlanShrunk):
            self._holds = False
            self._keep_shortage(event)
        if not isinstance(event, StepFinished) or not self._holds:
            return
        self._num_steps += 1
        self._peak_bytes = max(self._peak_bytes, event.device_peak_bytes)
        self._reserved_bytes = max(self._reserved_bytes, event.device_reserved_bytes)
        self._step_s = event.duration_s
        if self._num_steps == STEPS_BEFORE_MEASURED:
            expected = self._planned.expected
            self._emit(
                PlanMeasured(
                    step=event.step,
                    peak_bytes=self._peak_bytes,
                    reserved_bytes=self._reserved_bytes,
                    step_s=self._step_s,
                    expected_peak_bytes=expected.peak_bytes,
                    expected_step_s=expected.step_s,
                )
            )
        if self._num_steps in (STEPS_BEFORE_MEASURED, self._steps_per_epoch):
            self._keep()

    def _keep_shortage(self, event: PlanShrunk) -> None:
        """Have the next run not begin with a plan that can't end well."""
        failed, self._plan = self._plan, MemoryPlan(**event.plan)
        if not event.asked_bytes:
            return  # not the allocator's word: nobody knows what would have been enough
        planned = self._planned
        needed_bytes = max(event.in_use_bytes + event.asked_bytes, event.cap_bytes)
        keep_shortage(
            planned.key,
            Measured(
                plan=failed,
                estimated_bytes=peak_bytes(failed, planned.sizes, planned.step),
                peak_bytes=needed_bytes,
                reserved_bytes=needed_bytes,
                step_s=0.0,
                whole=False,
                ran_out=True,
            ),
            planned.about,
        )

    def _keep(self) -> None:
        if not self._peak_bytes:
            return  # no card was used
        planned = self._planned
        keep_run(
            planned.key,
            Measured(
                plan=planned.plan,
                estimated_bytes=planned.estimated_bytes,
                peak_bytes=self._peak_bytes,
                reserved_bytes=self._reserved_bytes,
                step_s=self._step_s,
                whole=self._num_steps >= self._steps_per_epoch,
            ),
            planned.about,
        )


def room_bytes(config: PorosConfig, device: torch.device) -> int | None:
    """What the allocator may give out: by the budget, or what is free; None: no matter how much."""
    if isinstance(config.vram_budget, float):
        return round(config.vram_budget * 1e9)
    if config.vram_budget == "min" or device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    ours = torch.cuda.memory_reserved(device)
    return max(free_bytes + ours - max(DESKTOP_BYTES, round(DESKTOP_PART * total_bytes)), 0)


def _facts(
    config: PorosConfig, base: BaseModel, device: torch.device, step: StepShape
) -> dict[str, Any]:
    settings = (
        "quantization", "torch_dtype", "attn_implementation", "block_size", "lora_rank",
        "lora_target_modules", "adapter_dtype", "autocast", "packing", "per_device_batch_size",
    )  # fmt: skip
    card = _card_name(device)
    shape = dataclasses.asdict(step)
    named = {name: getattr(config, name) for name in settings}
    where = {"card": card, "host_tier": base.host_tier, "torch": torch.__version__}
    return {"model": base.digest} | where | shape | named


def _card_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _from_disk(expected: Estimate) -> Estimate:
    """How fast the disk reads isn't measured before a run, only that a step waits for it."""
    words = f"the disk: most of {told_size(expected.copied_bytes, 1)} a step are read from files"
    return replace(expected, step_s=None, bottleneck=words)


def _linears(layer: nn.Module, path: str, targets: Sequence[str] | str) -> list[LinearShape]:
    return [
        LinearShape(module.in_features, module.out_features, _is_target(f"{path}.{name}", targets))
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear)
    ]


def _is_target(name: str, targets: Sequence[str] | str) -> bool:
    if isinstance(targets, str):
        return targets == "all-linear" or re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def _num_weights(layer: Iterable[LinearShape]) -> int:
    return sum(x.num_inputs * x.num_outputs for x in layer)


def _bytes_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
