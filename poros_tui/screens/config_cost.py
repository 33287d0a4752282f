"""What a config takes of card, host, disk and time, and what a change of one setting does to that.

[Note: which settings count]
`cost` reads the config through `_Read`, which notes each key that it looked at. So a setting whose
change makes no difference is told as that only if the estimate hangs on it at all; of all others
nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from poros.check_memory import TextHeaders
from poros.check_needs import LIBRARIES_BYTES, TIME_BAND, host_bytes
from poros.config import PorosConfig
from poros.errors import PorosConfigError, PorosOOMError
from poros.memory_plan import MemoryPlan, memory_plan
from poros.memory_planner import Estimate, Rates, choose, estimate
from poros.memory_sizes import (
    CONTEXT_BYTES,
    FLOAT_BYTES,
    MOMENTS,
    SHORT_BYTES,
    ModelSizes,
    StepShape,
    usable_bytes,
)
from poros_tui.screens.config_form import FieldForm, fields, shown

_DESKTOP_BYTES, _DESKTOP_PART = 256 * 2**20, 0.02
"""What ``vram_budget: auto`` leaves free, as `training/planning.py` has it."""
_SAME = 0.005
"""Of bytes: a difference below this part is none to a person."""
_SAME_TIME = 0.05


@dataclass(frozen=True)
class Computer:
    """What the wizard knows of this machine; None or 0: it does not.

    Attributes:
        card: The card's name; empty: there is none.
        total_bytes: Of the card.
        free_bytes: Of it, now.
        rates: Of link and card, as `poros doctor` measured them.
        host_bytes: Memory of the host that is free now.
        disk_bytes: Free where the run writes.
    """

    card: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    rates: Rates | None = None
    host_bytes: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class Cost:
    """What a run is expected to take; None: it can't be told.

    Attributes:
        device_bytes: Of the card, all in all.
        host_bytes: Of the host's memory.
        disk_bytes: Of checkpoints and adapter.
        step_s: The floor of a step's time.
        num_steps: Optimizer steps.
        save_steps: Between two checkpoints.
        plan: What lies where.
        refusal: Why it does not fit; empty: it does.
        way_out: What would fit.
        hangs_on: The settings that were looked at.
    """

    device_bytes: int | None = None
    host_bytes: int | None = None
    disk_bytes: int | None = None
    step_s: float | None = None
    num_steps: int | None = None
    save_steps: int = 0
    plan: Estimate | None = None
    refusal: str = ""
    way_out: str = ""
    hangs_on: frozenset[str] = field(default_factory=frozenset)

    @property
    def total_band_s(self) -> tuple[float, float] | None:
        """Between what and what the run's time lies."""
        if self.step_s is None or self.num_steps is None:
            return None
        low, high = TIME_BAND
        return self.step_s * self.num_steps * low, self.step_s * self.num_steps * high


def cost(
    config: PorosConfig, model: TextHeaders | None, computer: Computer, num_rows: int | None = None
) -> Cost:
    """What a run of this config takes.

    Args:
        config: Its settings.
        model: The model's headers; None: not known (yet).
        computer: Where it is to run.
        num_rows: Rows of the training data; None: not known.
    """
    read = _Read(config)
    steps = _num_steps(read, num_rows)
    if model is None:
        return Cost(num_steps=steps, save_steps=config.save_steps, hangs_on=frozenset(read.keys))
    sizes = sizes_of(
        model,
        read.lora_rank,
        _targets(read.lora_target_modules),
        SHORT_BYTES if read.adapter_dtype == "bfloat16" else FLOAT_BYTES,
        read.layers_per_block,
        read.quantization != "nf4",
    )
    if sizes is None:
        return Cost(num_steps=steps, save_steps=config.save_steps, hangs_on=frozenset(read.keys))
    step = StepShape(
        num_rows=read.per_device_batch_size * read.max_seq_length,
        accumulation=read.gradient_accumulation_steps,
        dropout=read.lora_dropout > 0,
        short_adapters=read.autocast or read.adapter_dtype == "bfloat16",
    )
    on_card = bool(computer.card) and read.device != "cpu"
    plan, refusal = _planned(read, sizes, step, computer, on_card=on_card)
    blocks = sum(sizes.block_bytes) if read.host_tier == "disk" and on_card else 0
    state = (1 + MOMENTS) * sizes.adapter_bytes
    return Cost(
        device_bytes=plan.device_bytes if on_card else None,
        host_bytes=_host_bytes(plan.plan, sizes, step, on_card=on_card) - blocks,
        disk_bytes=read.keep_checkpoints * state + sizes.adapter_bytes,
        step_s=plan.step_s,
        num_steps=steps,
        save_steps=config.save_steps,
        plan=plan if on_card else None,
        refusal=refusal[0],
        way_out=refusal[1],
        hangs_on=frozenset(read.keys),
    )


@lru_cache(256)
def sizes_of(
    model: TextHeaders,
    rank: int,
    targets: tuple[str, ...] = (),
    adapter_weight_bytes: int = FLOAT_BYTES,
    layers_per_block: int = 1,
    is_dense: bool = False,
) -> ModelSizes | None:
    """As `TextHeaders.sizes`, kept: the form asks dozens of times at each key that is pressed."""
    return model.sizes(
        rank=rank,
        targets=targets,
        adapter_weight_bytes=adapter_weight_bytes,
        layers_per_block=layers_per_block,
        is_dense=is_dense,
    )


def effect(
    key: str,
    config: PorosConfig,
    now: Cost,
    cost_of: Callable[[PorosConfig], Cost],
) -> str:
    """What another value of one setting would do to card, host and time, in a few words.

    Args:
        key: The setting.
        config: All settings as they are.
        now: Their cost.
        cost_of: The cost of others.

    Returns:
        Empty where the estimate knows nothing of the setting.
    """
    if key not in now.hangs_on:
        return ""
    knows_anything = now.host_bytes is not None or now.num_steps is not None
    if not knows_anything:
        return ""
    told = ""
    for label, value in _neighbours(fields()[key], getattr(config, key)):
        try:
            other = PorosConfig(**(config.model_dump() | {key: value}))
        except PorosConfigError:
            continue
        there = cost_of(other)
        if there.refusal and not now.refusal:
            return f"{label}: does not fit"
        parts = _changes(now, there)
        if parts:
            return f"{label}: {', '.join(parts)}"
        told = told or "no change of memory or time"
    return told


def _neighbours(each: FieldForm, value: Any) -> list[tuple[str, Any]]:
    """Other values of a setting to compare with, each with its name."""
    if each.kind == "toggle":
        return [("off" if value else "on", not value)]
    if each.key == "vram_budget":
        return [("min", "min")] if value != "min" else [("auto", "auto")]
    if each.kind == "choice":
        return [(word, word) for word in each.choices if word != value]
    if each.key == "block_size":
        return [(f"{2 * (value or 1)}", 2 * (value or 1))]
    if each.key == "lora_dropout":
        return [("0", 0.0)] if value else [("0.05", 0.05)]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value:
        return [(f"{shown(2 * value)}", 2 * value)]
    return []


def _changes(now: Cost, there: Cost) -> list[str]:
    parts = []
    for name, one, other in (
        ("card", now.device_bytes, there.device_bytes),
        ("RAM", now.host_bytes, there.host_bytes),
        ("disk", now.disk_bytes, there.disk_bytes),
    ):
        if one is None or other is None or abs(other - one) < max(_SAME * one, 1e6):
            continue
        parts.append(f"{name} {_signed(other - one)}")
    one_s, other_s = _time(now), _time(there)
    if one_s and other_s and abs(other_s / one_s - 1) > _SAME_TIME:
        parts.append(f"time x{other_s / one_s:.2g}")
    elif now.num_steps and there.num_steps and now.num_steps != there.num_steps:
        parts.append(f"steps {there.num_steps - now.num_steps:+,}")
    return parts


def _planned(
    read: _Read, sizes: ModelSizes, step: StepShape, computer: Computer, *, on_card: bool
) -> tuple[Estimate, tuple[str, str]]:
    """The plan of a run, and why it does not fit with the way out; empty if it does."""
    rates = computer.rates if on_card else None
    least = estimate(memory_plan("min"), sizes, step, rates=rates)
    if on_card and read.vram_budget != "min":
        room = _room(read.vram_budget, computer)
        try:
            return choose(room, sizes, step, num_slots=read.num_slots, rates=rates), ("", "")
        except PorosOOMError as error:
            return least, (error.message, error.remediation)
    if on_card and least.device_bytes > computer.total_bytes:
        told = f"the least that it takes is {least.device_bytes / 1e9:.1f} GB of the card"
        return least, (told, "lower max_seq_length or per_device_batch_size")
    if read.vram_budget == "min":
        return least, ("", "")
    bare = replace(memory_plan(read.vram_budget), num_slots=read.num_slots)
    return estimate(bare, sizes, step), ("", "")


def _time(found: Cost) -> float | None:
    if found.step_s is None:
        return None
    return found.step_s * (found.num_steps or 1)


def _signed(num_bytes: int) -> str:
    sign = "+" if num_bytes > 0 else "-"
    size = abs(num_bytes)
    return f"{sign}{size / 1e9:.1f} GB" if size >= 5e7 else f"{sign}{size / 1e6:.0f} MB"


def _num_steps(read: _Read, num_rows: int | None) -> int | None:
    if read.max_steps is not None:
        return int(read.max_steps)
    if num_rows is None:
        return None
    in_step = read.per_device_batch_size * read.gradient_accumulation_steps
    return int(read.num_epochs * max(-(-num_rows // in_step), 1))


def _targets(setting: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Names of linears; PEFT's own words and patterns are taken for the family's linears."""
    if setting is None or setting == "all-linear":
        return ()
    names = (setting,) if isinstance(setting, str) else setting
    return tuple(name for name in names if name.replace("_", "").isalnum())


def _room(budget: float | str, computer: Computer) -> int:
    if isinstance(budget, str):
        kept = max(_DESKTOP_BYTES, round(_DESKTOP_PART * computer.total_bytes))
        # CUDA's own part is not there yet when the machine is looked at from outside.
        return usable_bytes(max(computer.free_bytes - CONTEXT_BYTES - kept, 0))
    return usable_bytes(round(budget * 1e9))


def _host_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape, *, on_card: bool) -> int:
    if on_card:
        return host_bytes(plan, sizes, step)
    # All of it is the host's: what a card would hold, too.
    peak = estimate(plan, sizes, step).peak_bytes
    return int(sum(sizes.block_bytes) + LIBRARIES_BYTES + peak)


class _Read:
    """A config that notes which settings were looked at."""

    def __init__(self, config: PorosConfig) -> None:
        self._config = config
        self.keys: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.keys.add("block_size" if name == "layers_per_block" else name)
        return getattr(self._config, name)
