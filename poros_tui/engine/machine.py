"""What the machine has left, sampled once a second by a thread of its own: card, RAM, disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros.device_facts import total_and_used
from poros.home_paths import here


@dataclass(frozen=True, slots=True)
class Machine:
    """One look; None: unknown, or not there.

    Attributes:
        card: Its name; empty: no card that NVIDIA's driver knows.
        card_total_bytes: Of the first card that CUDA_VISIBLE_DEVICES leaves.
        card_used_bytes: By everybody.
        ram_total_bytes: Of the host.
        ram_free_bytes: What programs can still get.
        disk_free_bytes: Where runs are written.
    """

    card: str = ""
    card_total_bytes: int | None = None
    card_used_bytes: int | None = None
    ram_total_bytes: int | None = None
    ram_free_bytes: int | None = None
    disk_free_bytes: int | None = None


class MachineWatch:
    """Samples in a daemon thread; `latest` never waits."""

    def __init__(self, folder: Path, every_s: float = 1.0) -> None:
        """Nothing runs until `start`; ``folder`` is where runs are written."""
        self.latest = Machine()
        self.folder = folder
        self._every_s = every_s
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin; the thread ends with `stop` or with the process."""
        threading.Thread(target=self._watch, name="machine", daemon=True).start()

    def stop(self) -> None:
        """End soon."""
        self._stop.set()

    def _watch(self) -> None:
        nvml = _Nvml()
        while not self._stop.is_set():
            self.latest = look(self.folder, nvml)
            self._stop.wait(self._every_s)


class _Nvml:
    """NVIDIA's library, if it is there; it makes no CUDA context."""

    def __init__(self, nvml: Any = None) -> None:
        self.handle: Any = None
        self.name = ""
        self._nvml = nvml
        with contextlib.suppress(Exception):
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
            self.handle = _first_card(self._nvml, visible)
            name = self._nvml.nvmlDeviceGetName(self.handle)
            self.name = name.decode() if isinstance(name, bytes) else str(name)

    def memory(self) -> tuple[int | None, int | None]:
        """Total and used bytes."""
        if self.handle is None:
            return None, None
        with contextlib.suppress(Exception):
            return total_and_used(self._nvml, self.handle)
        return None, None


def _first_card(nvml: Any, visible: str) -> Any:
    """The card that a run would take: an engine sees what CUDA_VISIBLE_DEVICES leaves."""
    first = visible.partition(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    return nvml.nvmlDeviceGetHandleByIndex(int(first))


def look(folder: Path, nvml: _Nvml) -> Machine:
    """One sample; takes milliseconds, more on a network disk that hangs."""
    total, used = nvml.memory()
    ram_total = ram_free = disk = None
    with contextlib.suppress(Exception):
        import psutil

        memory = psutil.virtual_memory()
        ram_total, ram_free = int(memory.total), int(memory.available)
    with contextlib.suppress(OSError):
        disk = shutil.disk_usage(_there(folder)).free
    return Machine(nvml.name, total, used, ram_total, ram_free, disk)


def _there(folder: Path) -> Path:
    """The nearest folder above that exists."""
    return next(p for p in (here() / folder, *(here() / folder).parents) if p.exists())
