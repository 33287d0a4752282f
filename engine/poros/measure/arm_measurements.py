"""What the streamed arm measures of itself: memory on both sides, and what the link carried."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch

from poros.measure.cell_files import silent
from poros.training.memory_map import MemoryMapper, mapped_parts

if TYPE_CHECKING:
    from poros.measure.plan import Cell, Plan
    from poros.measure.streamed_arm import StreamedModel


def measurements(streamed: StreamedModel, num_passes: int) -> dict[str, Any]:
    """Memory, and what the link had to carry."""
    found: dict[str, Any] = {
        "num_passes": num_passes,
        "host_rss_bytes": psutil.Process().memory_info().rss,
        "host_rss_peak_bytes": peak_rss_bytes(),
        "host_block_bytes": sum(block.num_bytes for block in streamed.base.blocks),
        "load_device_peak_bytes": streamed.base.load_device_peak_bytes,
        "resident_bytes": streamed.base.resident_bytes - streamed.ends.num_bytes,
        "host_ends_bytes": streamed.ends.num_bytes,
        "holdings": [asdict(held) for held in streamed.optimizer.holdings(streamed.params)],
    }
    if streamed.device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        found |= {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "free_bytes": free_bytes,
            "total_bytes": total_bytes,
        }
    return found


def peak_rss_bytes() -> int:
    """The most memory that this process had at once, by the kernel (a parent's is not in it)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes.split()[1]) * 1024


def memory_mapper(plan: Plan, cell: Cell, streamed: StreamedModel) -> MemoryMapper:
    """What names the cell's memory."""
    parts = mapped_parts(
        streamed.base,
        model=streamed.model,
        params=streamed.params,
        optimizer=streamed.optimizer,
        manager=streamed.manager,
        device=streamed.device,
        ends_bytes=streamed.ends.num_bytes,
    )
    return MemoryMapper(parts, plan.memory_map_path(cell), silent)
