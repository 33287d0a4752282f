"""What a run shows of itself while it goes: the heartbeat, and samples for whoever watches.

It is asked in the session's main thread, reads plain attributes and counters of the allocator and
the driver, queues nothing on the device, and never waits for the trainer.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from poros.device_facts import Card, CardHeat, CardMemory
from poros.events import Heartbeat
from poros.streaming.block_manager import BlockManager
from poros.training.telemetry import host_rss_bytes

DIRECTIONS = {1: "forward", -1: "backward"}


class Live:
    """Looks at a run that another thread does."""

    def __init__(self) -> None:
        """There is nothing to see yet."""
        self._device: torch.device | None = None
        self._card: Card | None = None
        self._manager: weakref.ref[BlockManager] | None = None

    def device_is(self, device: torch.device) -> None:
        """The run computes there; CUDA has started by now."""
        if device.type == "cuda":
            self._device, self._card = device, None

    def show(self, manager: BlockManager) -> None:
        """The run's ring, which may go when it wants."""
        self._manager = weakref.ref(manager)

    def heartbeat(self, step: int, phase: str) -> Heartbeat:
        """The event that says that the process is alive."""
        memory = self._memory()
        return Heartbeat(
            step=step,
            phase=phase,
            host_rss_bytes=host_rss_bytes(),
            device_used_bytes=memory.used_bytes if memory else 0,
            device_total_bytes=memory.total_bytes if memory else 0,
            device_allocated_bytes=self._allocated_bytes(),
            device_reserved_bytes=self._reserved_bytes(),
            device_others_bytes=memory.others_bytes if memory else None,
        )

    def sample(self, step: int, phase: str) -> dict[str, Any]:
        """What a watcher gets; the fields are those of `poros_tui.engine.commands.LiveSample`."""
        manager = self._manager() if self._manager is not None else None
        blocks, computing, direction = "", None, 0
        if manager is not None:
            blocks, computing, direction = manager.seen()
            if phase == "pause" and computing is not None:
                blocks = blocks.replace("c", "r" if computing in manager.resident else "d")
                computing, direction = None, 0
        return {
            "step": step,
            "phase": phase,
            "blocks": blocks,
            "computing": computing,
            "direction": DIRECTIONS.get(direction, ""),
            "host_rss_bytes": host_rss_bytes(),
            "device": self._device_now(),
        }

    def _device_now(self) -> dict[str, Any] | None:
        memory = self._memory()
        if memory is None:
            return None
        heat = self._card.heat() if self._card is not None else CardHeat()
        return {
            "used": memory.used_bytes,
            "total": memory.total_bytes,
            "allocated": self._allocated_bytes(),
            "reserved": self._reserved_bytes(),
            "others": memory.others_bytes,
            "celsius": heat.celsius,
            "watts": heat.watts,
            "slowed": heat.slowed,
        }

    def _memory(self) -> CardMemory | None:
        if self._device is None:
            return None
        if self._card is None:  # here and not in the trainer's thread: the driver takes its time
            properties = torch.cuda.get_device_properties(self._device)
            self._card = Card(str(getattr(properties, "uuid", "")))
        told = self._card.memory()
        if told is None:  # no driver's library, as under some containers
            free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
            told = CardMemory(total_bytes - free_bytes, total_bytes, None)
        return told

    def _allocated_bytes(self) -> int:
        return 0 if self._device is None else torch.cuda.memory_allocated(self._device)

    def _reserved_bytes(self) -> int:
        return 0 if self._device is None else torch.cuda.memory_reserved(self._device)
