"""A card as its driver tells it: memory, and by whom it is used, heat; torch-free."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CardMemory:
    """One look at a card.

    Attributes:
        used_bytes: By all processes, as nvidia-smi says.
        total_bytes: Of the card.
        others_bytes: By other processes; None: the driver hides who has what, as it does in many
            containers and under WSL.
    """

    used_bytes: int
    total_bytes: int
    others_bytes: int | None


def total_and_used(nvml: Any, handle: Any) -> tuple[int, int]:
    """Bytes of a card, as nvidia-smi says them.

    Raises:
        nvml.NVMLError: The driver does not say.
    """
    try:
        # This one leaves out what the driver keeps for itself, as nvidia-smi does.
        told = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):
        told = nvml.nvmlDeviceGetMemoryInfo(handle)
    return int(told.total), int(told.used)


# NVML's bits of why a clock is lowered, the same in every version. The power limit is none of them:
# most cards are at theirs whenever they work.
_TOO_HOT = 0x20 | 0x40
_BRAKED = 0x80
_HELD_BACK = 0x08  # by heat or supply; old cards tell no more


@dataclass(frozen=True, slots=True)
class CardHeat:
    """How warm a card is; None: the driver does not say.

    Attributes:
        celsius: Of the chip.
        watts: What it draws.
        slowed: It lowers its clock, since it is hot or gets too little power.
        is_hot: It does so for heat.
        is_braked: Its supply tells it to.
    """

    celsius: int | None = None
    watts: float | None = None
    slowed: bool | None = None
    is_hot: bool = False
    is_braked: bool = False


def heat_of(nvml: Any, handle: Any) -> CardHeat:
    """What the driver says of a card's heat now; drivers differ in what they know."""
    reasons = asked(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:  # its name before the driver 535
        reasons = asked(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    milliwatts = asked(nvml, "nvmlDeviceGetPowerUsage", handle)
    return CardHeat(
        celsius=asked(nvml, "nvmlDeviceGetTemperature", handle, 0),  # 0: the chip's own sensor
        watts=None if milliwatts is None else milliwatts / 1000,
        slowed=None if reasons is None else bool(reasons & (_TOO_HOT | _BRAKED | _HELD_BACK)),
        is_hot=bool((reasons or 0) & _TOO_HOT),
        is_braked=bool((reasons or 0) & _BRAKED),
    )


def asked(nvml: Any, function: str, *arguments: Any) -> int | None:
    """The driver's number; None: it does not know the question, or this card does not answer."""
    try:
        return int(getattr(nvml, function)(*arguments))
    except (nvml.NVMLError, AttributeError, TypeError):
        return None


class Card:
    """A card that is looked at again and again.

    Args:
        uuid: As CUDA names it, with or without ``GPU-``; a number would not follow
            CUDA_VISIBLE_DEVICES.
        nvml: The driver's library; None: `pynvml`.
    """

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        """Find it; a driver that does not answer is no error."""
        self._nvml = nvml
        self._handle: Any = None
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
        except ImportError:
            return
        except self._nvml.NVMLError:
            return
        self._handle = self._find(uuid)

    def memory(self) -> CardMemory | None:
        """What the driver says now; None: it says nothing."""
        if self._handle is None:
            return None
        try:
            total, used = total_and_used(self._nvml, self._handle)
        except self._nvml.NVMLError:
            return None
        ours = self._ours()
        others = None if ours is None else max(used - ours, 0)
        return CardMemory(used, total, others)

    def heat(self) -> CardHeat:
        """How warm it is now."""
        return CardHeat() if self._handle is None else heat_of(self._nvml, self._handle)

    def _find(self, uuid: str) -> Any:
        bare = uuid.partition("-")[2] if uuid.startswith(("GPU-", "MIG-")) else uuid
        for name in (f"GPU-{bare}", f"MIG-{bare}"):
            for text in (name, name.encode()):
                try:
                    return self._nvml.nvmlDeviceGetHandleByUUID(text)
                except (self._nvml.NVMLError, TypeError):
                    continue
        return None

    def _ours(self) -> int | None:
        """What this process has, its CUDA context included; None: it is not told."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return None
        # In a container the driver may know this process under another number, or give no sizes.
        ours = [p.usedGpuMemory for p in found if int(p.pid) == os.getpid()]
        return int(ours[0]) if ours and ours[0] is not None else None
