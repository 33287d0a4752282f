"""What a step cost: time, bytes over the link, memory."""

from __future__ import annotations

import time
from typing import TypedDict

import psutil
import torch

from poros.streaming.block_manager import BlockManager
from poros.training.optimizer import AdapterAdamW


class StepCost(TypedDict):
    """The measurements of a `StepFinished`."""

    duration_s: float
    copied_bytes: int
    copy_wait_s: float
    device_peak_bytes: int
    device_reserved_bytes: int
    host_rss_bytes: int


class Meter:
    """Measures from one `take` to the next."""

    def __init__(
        self, device: torch.device, manager: BlockManager, optimizer: AdapterAdamW
    ) -> None:
        """Start now."""
        self._device = device
        self._manager = manager
        self._optimizer = optimizer
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.restart()

    def restart(self) -> None:
        """Leave out what was since the last `take`, such as a checkpoint."""
        self._started_s = time.monotonic()
        self._moved_bytes_before = self._moved_bytes()
        self._take_wait_s()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def take(self) -> StepCost:
        """The cost since the start, and start again."""
        on_cuda = self._device.type == "cuda"
        cost = StepCost(
            duration_s=time.monotonic() - self._started_s,
            copied_bytes=self._moved_bytes() - self._moved_bytes_before,
            copy_wait_s=self._take_wait_s(),
            device_peak_bytes=torch.cuda.max_memory_allocated(self._device) if on_cuda else 0,
            device_reserved_bytes=torch.cuda.max_memory_reserved(self._device) if on_cuda else 0,
            host_rss_bytes=host_rss_bytes(),
        )
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, cost["device_peak_bytes"])
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, cost["device_reserved_bytes"])
        self.restart()
        return cost

    def _take_wait_s(self) -> float:
        return self._manager.take_copy_wait_s() + self._optimizer.take_copy_wait_s()

    def _moved_bytes(self) -> int:
        return self._manager.copied_bytes + self._optimizer.moved_bytes


def host_rss_bytes() -> int:
    """Memory of this process on the host."""
    return int(psutil.Process().memory_info().rss)
