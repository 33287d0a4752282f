"""What a run needs beside the card's memory: host memory, disk, a card, time; from headers alone.

[Note: bands]
Each estimate is told with the range in which the runs of docs/validation lay around theirs; a test
holds the constants below against those records. They are of one kind of card and of Qwen2.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poros.check_memory import (
    ACCUMULATION,
    DEVICE_BAND,
    PEAK_BAND,
    Band,
    Wanted,
    between,
    planned,
)
from poros.errors import PorosError
from poros.memory_plan import MemoryPlan
from poros.memory_planner import Estimate, Rates
from poros.memory_sizes import MOMENTS, SHORT_BYTES, ModelSizes, StepShape
from poros.told_sizes import told_size

HOST_BAND: Band = (0.9, 1.1)
"""Of the process's memory on the host."""
TIME_BAND: Band = (1.0, 6.0)
"""A step's time over the larger of link and arithmetic: 2.6 and 5.7 were seen, at 512 tokens; no
less than 1 by what these are."""
LIBRARIES_BYTES = 2_300_000_000
"""Host memory of libraries, CUDA's part on the host and buffers, beside what is counted."""

CARDS_GB = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141)
"""As cards are sold, in units of 2**30 bytes."""
CARD_PART = 0.96
"""Of a card's memory that a process can have beside a desktop."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run takes.

    Attributes:
        plan: Its plan, with what is expected of the card.
        host_bytes: Of the host's memory, with the blocks in it.
        disk_tier_bytes: The same with blocks read from disk.
        cache_bytes: Of the NF4 cache's entry.
        checkpoint_bytes: Of each checkpoint.
        smallest_card_gb: Of the sizes that are sold, the least that holds the least plan's upper
            end; None: none does.
        step_s: The floor of an optimizer step; None: neither rate is known.
    """

    plan: Estimate
    host_bytes: int
    disk_tier_bytes: int
    cache_bytes: int
    checkpoint_bytes: int
    smallest_card_gb: int | None
    step_s: float | None


def needs(
    sizes: ModelSizes, wanted: Wanted, rates: Rates | None = None, *, prequantised: bool = False
) -> Needs:
    """What a run takes under the plan that fits the room, or the smallest if none does.

    Args:
        sizes: Of the model.
        wanted: What the run would be.
        rates: Of link and card.
        prequantised: The model's files are NF4 already, and need no cache.
    """
    least = planned(sizes, replace(wanted, vram_gb=None), rates)
    try:
        found = planned(sizes, wanted, rates)
    except PorosError:
        found = least
    host = host_bytes(found.plan, sizes, wanted.step)
    return Needs(
        plan=found,
        host_bytes=host,
        disk_tier_bytes=host - sum(sizes.block_bytes),
        cache_bytes=0 if prequantised else sum(sizes.block_bytes) + _ends(sizes),
        checkpoint_bytes=(1 + MOMENTS) * sizes.adapter_bytes,
        smallest_card_gb=smallest_card(least.device_bytes),
        step_s=found.step_s,
    )


def host_bytes(plan: MemoryPlan, sizes: ModelSizes, step: StepShape) -> int:
    """Memory of the host with all blocks in it; ends, state and hidden states as the plan says."""
    total = sum(sizes.block_bytes) + LIBRARIES_BYTES
    if plan.head_on_host and not (sizes.tied and plan.embeddings_on_host):
        total += sizes.head_bytes
    if plan.embeddings_on_host:
        total += sizes.embedding_bytes
    if plan.moments_on_host or plan.adapters_on_host:
        total += MOMENTS * sizes.adapter_bytes
    if plan.adapters_on_host:
        total += 2 * sizes.adapter_bytes
    if plan.boundaries_on_host:
        total += sizes.num_layers * step.num_rows * sizes.hidden_size * SHORT_BYTES
    return total


def smallest_card(device_bytes: int) -> int | None:
    """The least card that is sold with room for so much at its band's upper end, in 2**30 bytes."""
    needed = DEVICE_BAND[1] * device_bytes
    return next((size for size in CARDS_GB if needed <= CARD_PART * size * 2**30), None)


def need_rows(
    found: Needs, *, download_bytes: int | None, rates: Rates | None, rates_of: str
) -> Sequence[tuple[str, str]]:
    """Lines for people.

    Args:
        found: What is needed.
        download_bytes: Of the model's files that are not here; None: not known.
        rates: Those that the time was computed from.
        rates_of: Where they come from, in words.
    """
    host = between(found.host_bytes, HOST_BAND)
    disk = between(found.disk_tier_bytes, HOST_BAND)
    card = found.smallest_card_gb
    rows = [
        ("smallest card", f"{card} GB, with vram_budget: min" if card else "none that is sold"),
        ("host memory", f"{host}; {disk} with host_tier: disk"),
        ("disk", _disk(found, download_bytes)),
    ]
    if found.step_s is None or rates is None:
        way = "`poros doctor` measures link and card, or give --link and --tflops"
        return [*rows, ("a step", f"time unknown: {way}")]
    low, high = (found.step_s * end for end in TIME_BAND)
    time = f"{low:.2g} to {high:.2g} s for {ACCUMULATION} micro-batches"
    return [*rows, ("a step", f"{time} ({rates_of}; the floor is {found.plan.bottleneck})")]


def need_record(found: Needs, *, download_bytes: int | None, rates_of: str) -> dict[str, object]:
    """The same for JSON; each band is [low, high]."""
    return {
        "device_bytes": _band(found.plan.device_bytes, DEVICE_BAND),
        "peak_bytes": _band(found.plan.peak_bytes, PEAK_BAND),
        "host_bytes": _band(found.host_bytes, HOST_BAND),
        "host_bytes_with_blocks_on_disk": _band(found.disk_tier_bytes, HOST_BAND),
        "smallest_card_gb": found.smallest_card_gb,
        "download_bytes": download_bytes,
        "cache_bytes": found.cache_bytes,
        "checkpoint_bytes": found.checkpoint_bytes,
        "step_s": None if found.step_s is None else [found.step_s * end for end in TIME_BAND],
        "rates_of": rates_of or None,
    }


def merged(given: Rates, measured: Rates | None) -> Rates:
    """The rates that were given, completed by measured ones."""
    if measured is None:
        return given
    return replace(
        given,
        link_bytes_per_s=given.link_bytes_per_s or measured.link_bytes_per_s,
        operations_per_s=given.operations_per_s or measured.operations_per_s,
    )


def _disk(found: Needs, download_bytes: int | None) -> str:
    parts = [(download_bytes, "of downloads"), (found.cache_bytes, "of NF4 cache")]
    told = [f"{told_size(size)} {what}" for size, what in parts if size]
    return ", ".join([*told, f"{told_size(found.checkpoint_bytes)} for each checkpoint"])


def _ends(sizes: ModelSizes) -> int:
    head = 0 if sizes.tied else sizes.head_bytes
    return head + sizes.embedding_bytes + sizes.other_bytes


def _band(value: int, band: Band) -> list[int]:
    return [round(value * band[0]), round(value * band[1])]
