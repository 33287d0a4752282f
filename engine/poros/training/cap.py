"""A budget in GB as the allocator's limit, for as long as it is anybody's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from poros.streaming.shortage import is_shortage


def hold_to(vram_budget: float | str, device: torch.device) -> None:
    """Have torch give out no more than a budget in GB; ``auto`` and ``min`` are no limit."""
    if device.type == "cuda" and isinstance(vram_budget, float):
        total_bytes = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(
            min(vram_budget * 1e9 / total_bytes, 1.0), device
        )


@contextlib.contextmanager
def own_limit_comes_back(device: torch.device) -> Iterator[None]:
    """Let limits be set inside; afterwards the process has the one that it had before."""
    if device.type != "cuda":
        yield
        return
    before, is_lost = torch.cuda.get_per_process_memory_fraction(device), False
    try:
        yield
    except torch.AcceleratorError as error:
        is_lost = not is_shortage(error)  # it must not be called again
        raise
    finally:
        if not is_lost:
            torch.cuda.set_per_process_memory_fraction(before, device)


@contextlib.contextmanager
def held_to(vram_budget: float | str, device: torch.device) -> Iterator[None]:
    """`hold_to`, while this lasts."""
    with own_limit_comes_back(device):
        hold_to(vram_budget, device)
        yield
