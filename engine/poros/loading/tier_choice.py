"""Where a run's blocks lie between their visits: what was asked for, what there is room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poros.check_sizes import layer_of, sizes
from poros.errors import PorosConfigError
from poros.events import Event, Warned
from poros.host_room import available_bytes, wanted_tier
from poros.loading.byte_source import TORCH_DTYPES, ByteSource
from poros.loading.model_filler import LoadPlan
from poros.streaming.block import Block
from poros.told_sizes import told_size

Emit = Callable[[Event], None]


def tier_for(
    setting: str, source: ByteSource, plan: LoadPlan, *, cached: bool, as_stock: bool
) -> str:
    """``registered``, ``pageable`` or ``disk``.

    Args:
        setting: The config's ``host_tier``.
        source: What will be loaded.
        plan: How.
        cached: It is quantised into the NF4 cache, or comes from there.
        as_stock: It is quantised by stock's load.

    Raises:
        PorosConfigError: ``disk`` is asked for, but the blocks will be in no file.
    """
    on_disk = cached or (not as_stock and _blocks_are_in_files(source, plan))
    if setting == "disk" and not on_disk:
        raise PorosConfigError(
            "the layers as they are computed lie in no file",
            where="host_tier",
            remediation="give a 4-bit folder, or set nf4_cache and delete nf4_load_strategy; a "
            "16-bit base needs a folder of its own type",
        )
    headers = {name: source.header(name) for name in source.names()}
    found = sizes(headers, source.config, plan.architecture.layers_path)
    needed_bytes = found.nf4_bytes if plan.quantization == "nf4" else found.dense_bytes
    tier = wanted_tier(setting, needed_bytes=needed_bytes, on_disk=on_disk)
    if tier == "disk":
        why = (
            f"the {told_size(needed_bytes, 1)} of them are too much for the "
            f"{told_size(available_bytes(), 1)} of memory that are free"
            if setting == "auto"
            else "host_tier says so"
        )
        message = f"blocks are read from disk at each visit, steps wait for it: {why}"
        plan.emit(Warned(code="host-tier", message=message))
    return tier


def tier_taken(tier: str, blocks: Sequence[Block], device: torch.device, *, emit: Emit) -> str:
    """The tier that the blocks are in: the system may have refused to register some."""
    if tier == "registered" and device.type != "cuda":
        return "memory"
    refused_bytes = sum(block.num_bytes for block in blocks if not block.registered)
    if tier != "registered" or not refused_bytes:
        return tier
    message = (
        f"the system refuses to pin {told_size(refused_bytes)} of the blocks, which go to the "
        "device through a staging buffer: slower, the same bits"
    )
    emit(Warned(code="host-tier", message=message))
    return "pageable"


def _blocks_are_in_files(source: ByteSource, plan: LoadPlan) -> bool:
    """Whether the layers' matrices lie in files byte for byte as they travel."""
    if plan.quantization == "nf4" and not plan.prequantised:
        return False
    for name in source.names():
        header = source.header(name)
        if layer_of(name, plan.architecture.layers_path) is None or len(header.shape) != 2:
            continue
        is_other = plan.quantization != "nf4" and TORCH_DTYPES.get(header.dtype) != plan.dtype
        if is_other or source.part(name) is None:
            return False
    return True
