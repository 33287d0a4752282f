"""What the streamed arm measures of itself: memory on both sides, and what the link carried."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

from poros.measure.cell_files import silent
from poros.measure.plan import Cell, Plan
from poros.measure.streamed_cell import StreamedCell
from poros.training.memory_map import MemoryMapper, mapped_parts


def measurements(streamed: StreamedCell, num_passes: int) -> dict[str, Any]:
    """Memory, and what the link had to carry."""
    boundaries = streamed.attachment.boundaries
    base = streamed.base
    found: dict[str, Any] = {
        "num_passes": num_passes,
        "host_rss_bytes": psutil.Process().memory_info().rss,
        "host_rss_before_load_bytes": base.rss_before_bytes,
        "host_tier": base.host_tier,
        "disk_bytes": sum(block.num_bytes - block.host_bytes for block in base.blocks),
        "host_rss_peak_bytes": peak_rss_bytes(),
        "host_block_bytes": sum(block.host_bytes for block in base.blocks),
        "load_device_peak_bytes": base.load_device_peak_bytes,
        "resident_bytes": base.resident_bytes - streamed.ends.num_bytes,
        "host_ends_bytes": streamed.ends.num_bytes,
        "host_boundary_bytes": boundaries.host_bytes if boundaries is not None else 0,
        "holdings": [asdict(held) for held in streamed.optimizer.holdings(streamed.params)],
    }
    if streamed.device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        found |= {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "free_bytes": free_bytes,
            "total_bytes": total_bytes,
            "device_level_peak_bytes": device_level_peak_bytes(streamed.device),
        }
    return found


def device_level_peak_bytes(device: torch.device) -> int | None:
    """The most that this process had of the card: the allocator's peak, and all beside it.

    Beside it are the CUDA context, kernels' code and libraries' workspaces: what the driver counts
    now for this process, less what the allocator has now. None: the driver hides processes.
    """
    pynvml.nvmlInit()
    try:
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    used = {process.pid: process.usedGpuMemory for process in running}.get(os.getpid())
    if used is None:
        return None
    beside = int(used) - torch.cuda.memory_reserved(device)
    return beside + torch.cuda.max_memory_reserved(device)


def peak_rss_bytes() -> int:
    """The most memory that this process had at once, by the kernel (a parent's is not in it)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kilobytes = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes.split()[1]) * 1024


def memory_mapper(plan: Plan, cell: Cell, streamed: StreamedCell) -> MemoryMapper:
    """What names the cell's memory."""
    parts = mapped_parts(
        streamed.base,
        model=streamed.model,
        params=streamed.params,
        optimizer=streamed.optimizer,
        manager=streamed.manager,
        device=streamed.device,
        attachment=streamed.attachment,
        ends=streamed.ends,
    )
    return MemoryMapper(parts, plan.memory_map_path(cell), silent)
