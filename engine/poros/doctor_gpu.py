"""Rows of `poros doctor` about the GPUs, as the driver's own library tells it; no CUDA starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from poros.doctor_cards import Driver, Gpu, User, has_hardware, process_name
from poros.doctor_power import power_rows, read_power
from poros.doctor_rows import Row, gb
from poros.doctor_smi import read_smi

OLDEST_CAPABILITY = (8, 0)
"""The first with bfloat16."""
OLDEST_DRIVER = 525
"""The first branch that runs CUDA 12."""
SMALL_CARD_BYTES = 4_000_000_000

_DRIVER_PAGE = "https://www.nvidia.com/drivers"


def read_driver() -> Driver:
    """What is there; never raises for a machine without a card or a driver.

    Where the driver's library does not answer, nvidia-smi is asked.
    """
    found = _read_library()
    if not found.failure or "mismatch" in found.failure.lower():
        return found
    return read_smi() or found


def _read_library() -> Driver:
    try:
        import pynvml
    except ImportError:
        return Driver(failure="nvidia-ml-py is not installed", hardware=has_hardware())
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Driver(failure=str(error), hardware=has_hardware())
    try:
        return _read(pynvml)
    except pynvml.NVMLError as error:
        return Driver(failure=str(error), hardware=has_hardware())
    finally:
        pynvml.nvmlShutdown()


def gpu_rows(driver: Driver) -> Iterator[Row]:
    """A row for the driver, and up to five for each card."""
    if driver.failure or not driver.gpus:
        yield _missing_row(driver)
        return
    yield _driver_row(driver)
    for gpu in driver.gpus:
        yield _card_row(gpu)
        yield _link_row(gpu)
        yield _users_row(gpu)
        yield from power_rows(gpu.index, gpu.power)


def _missing_row(driver: Driver) -> Row:
    """No card that can be used, and why."""
    on_cpu = "training runs on the CPU, which suits the demo and tiny models"
    if driver.failure == "nvidia-ml-py is not installed":
        return Row(
            "gpu", "unknown", driver.failure, "cards can't be looked at", "pip install nvidia-ml-py"
        )
    if "mismatch" in driver.failure.lower():
        return Row(
            "gpu",
            "bad",
            driver.failure,
            "the driver was updated while its older kernel module is loaded",
            "restart the machine",
        )
    if driver.hardware:
        return Row(
            "gpu",
            "bad",
            f"an NVIDIA card, but its driver does not answer ({driver.failure or 'no card'})",
            "CUDA can't be used",
            f"install the driver ({_DRIVER_PAGE}), or start the container with --gpus all",
        )
    return Row("gpu", "warn", "no NVIDIA card found", on_cpu)


def _driver_row(driver: Driver) -> Row:
    what = f"driver {driver.version}, for CUDA up to {driver.cuda or 'unknown'}"
    branch = driver.version.partition(".")[0]
    if branch.isdigit() and int(branch) < OLDEST_DRIVER:
        return Row(
            "driver",
            "bad",
            what,
            f"torch's CUDA needs driver {OLDEST_DRIVER} or later",
            f"install a newer driver: {_DRIVER_PAGE}",
        )
    return Row("driver", "ok", what, "the driver answers and is new enough")


def _card_row(gpu: Gpu) -> Row:
    capability = ".".join(map(str, gpu.capability))
    what = (
        f"{gpu.name}{' (MIG)' * gpu.mig}: {gb(gpu.free_bytes)} of {gb(gpu.total_bytes)} free,"
        f" compute capability {capability}"
    )
    name = f"gpu{gpu.index}"
    if gpu.capability < OLDEST_CAPABILITY:
        return Row(
            name,
            "bad",
            what,
            "without bfloat16 in hardware; Poros computes in it",
            "use a card of the Ampere generation or later (RTX 30, A100 and on)",
        )
    if gpu.total_bytes < SMALL_CARD_BYTES:
        return Row(
            name,
            "warn",
            what,
            "a small card: large vocabularies and long samples may not fit",
            f"poros check MODEL --vram {gpu.total_bytes / 1e9:.0f} says what does",
        )
    return Row(name, "ok", what, "bfloat16 in hardware, room for streaming")


def _link_row(gpu: Gpu) -> Row:
    name = f"gpu{gpu.index}_link"
    if gpu.link is None:
        return Row(name, "unknown", "the PCIe link can't be told", "blocks travel over it")
    now, width, most, most_width = gpu.link
    what = f"PCIe {now} x{width}, card and slot allow {most} x{most_width}"
    if width < most_width:
        return Row(
            name,
            "warn",
            what,
            f"blocks travel at {width}/{most_width} of the speed",
            "seat the card in a slot with all lanes, without a riser",
        )
    # An idle card lowers the generation to save power; only the width tells of a bad slot.
    return Row(name, "ok", what, "blocks travel over all lanes")


def _users_row(gpu: Gpu) -> Row:
    name = f"gpu{gpu.index}_processes"
    if not gpu.users:
        return Row(name, "ok", "no process of others holds memory", "all of the card is free")
    told = ", ".join(
        f"{user.name} (pid {user.pid}{f', {gb(user.used_bytes)}' if user.used_bytes else ''})"
        for user in gpu.users
    )
    taken = gpu.total_bytes - gpu.free_bytes
    if taken < gpu.total_bytes / 10:
        return Row(name, "ok", told, f"they hold {gb(taken)}, Poros plans with the rest")
    return Row(
        name,
        "warn",
        told,
        f"{gb(taken)} of the card are taken, Poros plans with the rest",
        "end those that you do not need",
    )


def _read(nvml: Any) -> Driver:
    count = nvml.nvmlDeviceGetCount()
    return Driver(
        version=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda=_cuda(nvml),
        gpus=tuple(_read_gpu(nvml, index) for index in range(count)),
        hardware=bool(count) or has_hardware(),
    )


def _read_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index,
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.free),
        (int(major), int(minor)),
        _read_link(nvml, handle),
        _read_users(nvml, handle),
        _read_mig(nvml, handle),
        read_power(nvml, handle),
    )


def _read_link(nvml: Any, handle: Any) -> tuple[int, int, int, int] | None:
    try:
        return (
            int(nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
            int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        )
    except nvml.NVMLError:
        return None


def _read_users(nvml: Any, handle: Any) -> tuple[User, ...]:
    found: dict[int, int | None] = {}
    for ask in (
        nvml.nvmlDeviceGetComputeRunningProcesses,
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            found |= {int(p.pid): p.usedGpuMemory for p in ask(handle)}
        except nvml.NVMLError:
            continue
    return tuple(User(pid, process_name(pid), used) for pid, used in sorted(found.items()))


def _read_mig(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False


def _cuda(nvml: Any) -> str:
    try:
        number = int(nvml.nvmlSystemGetCudaDriverVersion())
    except nvml.NVMLError:
        return ""
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def visible_gpus(driver: Driver, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The cards that CUDA would see, as far as ``CUDA_VISIBLE_DEVICES`` is plain numbers."""
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return driver.gpus
    seen = []
    for word in wanted.split(","):
        if not word.strip().isdigit() or int(word) >= len(driver.gpus):
            break
        seen.append(driver.gpus[int(word)])
    return tuple(seen)
