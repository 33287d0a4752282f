"""What is known of the cards of a machine, whoever tells it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from poros.doctor_power import Power


@dataclass(frozen=True, slots=True)
class User:
    """A process that holds memory of a card; ``used_bytes`` None: the driver does not say."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    capability: tuple[int, int]
    link: tuple[int, int, int, int] | None = None
    """Generation and width of the PCIe link: now, now, most, most."""
    users: tuple[User, ...] = ()
    mig: bool = False
    power: Power = field(default_factory=Power)


@dataclass(frozen=True, slots=True)
class Driver:
    """What the driver's library says.

    Attributes:
        version: Of the driver.
        cuda: The newest CUDA that it runs, ``12.4``.
        gpus: In its order.
        failure: Why nothing can be told; empty: it can.
        hardware: Whether the system shows a card of NVIDIA's at all; None: can't be told.
    """

    version: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    failure: str = ""
    hardware: bool | None = field(default=None)


def process_name(pid: int) -> str:
    """A process as the system names it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip() or "a process"
    except OSError:
        return "a process outside this container"


def has_hardware() -> bool | None:
    """Whether the PCI bus, or WSL's bridge, shows a card of NVIDIA's."""
    if Path("/dev/nvidia0").exists() or Path("/usr/lib/wsl/lib/libcuda.so.1").exists():
        return True
    devices = Path("/sys/bus/pci/devices")
    try:
        return any(
            (device / "vendor").read_text().strip() == "0x10de"
            and (device / "class").read_text().startswith("0x03")
            for device in devices.iterdir()
        )
    except OSError:
        return None
