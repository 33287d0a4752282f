"""How fast this machine copies to its device, and multiplies on it: measured just now."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

_LINK_BYTES = 64 * 2**20
_REPEATS = 8


@functools.cache
def link_rate(device: torch.device) -> float:
    """Bytes a second from a pinned buffer to the device; measured once a process."""
    host = torch.empty(_LINK_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device=device)
    seconds = _timed(lambda: there.copy_(host, non_blocking=True))
    return _LINK_BYTES / seconds


def multiply_rate(device: torch.device, tokens: int, hidden: int, mlp: int) -> float:
    """Operations a second of bfloat16 products of these widths; draws no number of the run's."""
    random = torch.Generator(device).manual_seed(0)
    x_TD = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=device)
    w_DF = torch.empty(hidden, mlp, dtype=torch.bfloat16, device=device)
    x_TD.normal_(generator=random)
    w_DF.normal_(generator=random)
    seconds = _timed(lambda: x_TD @ w_DF)
    return 2.0 * tokens * hidden * mlp / seconds


def _timed(work: Callable[[], object]) -> float:
    work()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(_REPEATS):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / _REPEATS
