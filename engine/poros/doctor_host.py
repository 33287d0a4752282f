"""Rows of `poros doctor` about the machine: memory, limits, disks, WSL, Python."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from poros.doctor_rows import Row, State, gb
from poros.os_errors import why

SMALL_HOST_BYTES = 8_000_000_000
"""Less can't hold the blocks of a 7B model beside the libraries."""
SMALL_DISK_BYTES = 20_000_000_000
"""A 7B model in 16 bits takes 15 GB, and its NF4 blocks 4 GB."""
FULL_DISK_BYTES = 2_000_000_000
"""Less can't hold a checkpoint and its successor."""
PROBE_BYTES = 2**20
"""Of the file that is written and removed where files go."""

_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the host, in bytes; ``limit_bytes`` None: no cgroup limits it below the total."""

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """A place that files go to.

    Attributes:
        id: Of the row.
        purpose: In words.
        path: The folder, which need not be there yet.
        setting: What moves it elsewhere.
    """

    id: str
    purpose: str
    path: Path
    setting: str


def read_memory() -> Memory:
    """What this process has."""
    import psutil

    from poros.host_room import available_bytes, limit_bytes

    return Memory(
        int(psutil.virtual_memory().total),
        available_bytes(),
        limit_bytes(),
    )


def memory_row(memory: Memory) -> Row:
    """Room for blocks in the host's memory."""
    limit = memory.limit_bytes
    of = min(limit, memory.total_bytes) if limit else memory.total_bytes
    what = f"{gb(memory.available_bytes)} of {gb(of)} available"
    if memory.available_bytes >= SMALL_HOST_BYTES:
        return Row("host_memory", "ok", what, "blocks of a model wait in this memory")
    return Row(
        "host_memory",
        "warn",
        what,
        "blocks that find no room in memory are read from files at each visit, which is slower",
        "close other programs"
        if memory.available_bytes < of / 2
        else "take a smaller model, or a machine with more memory",
    )


def limit_row(memory: Memory) -> Row:
    """Whether a container or a service manager allows less than the machine has."""
    limit = memory.limit_bytes
    if limit is None or limit >= memory.total_bytes:
        return Row("cgroup", "ok", "no limit below the machine's memory", "all memory may be used")
    return Row(
        "cgroup",
        "warn" if limit < SMALL_HOST_BYTES else "ok",
        f"{gb(limit)} of the machine's {gb(memory.total_bytes)} are allowed",
        "the kernel kills a process that goes over this limit; Poros plans for it",
        "give the container more: docker run --memory, or MemoryMax= of the service"
        if limit < SMALL_HOST_BYTES
        else "",
    )


def lock_row(limit_bytes: int | None, *, is_wsl: bool) -> Row:
    """How much memory may be pinned, as far as limits say; None: without limit."""
    if is_wsl:
        return Row(
            "pinned_limit",
            "warn",
            "WSL pins a small part of the memory only",
            "blocks beyond that wait in plain memory and are copied twice, which is slower",
            "raise `memory=` in %UserProfile%\\.wslconfig, then: wsl --shutdown",
        )
    # The driver pins by its own call, to which RLIMIT_MEMLOCK does not apply on usual systems.
    what = "no limit" if limit_bytes is None else f"ulimit -l is {limit_bytes // 1024} kB"
    return Row("pinned_limit", "ok", what, "CUDA pins memory by its driver, not by this limit")


def disk_row(disk: Disk, free_bytes: int | None, *, failure: str = "", filesystem: str = "") -> Row:
    """Room and rights where files go.

    Args:
        disk: The place.
        free_bytes: None: it can't be told.
        failure: Why a file could not be written there; empty: it could.
        filesystem: Its kind.
    """
    place = f"{disk.path.expanduser().absolute()}{f' ({filesystem})' if filesystem else ''}"
    move = f"free space, or move it: {disk.setting}"
    if failure:
        return Row(
            disk.id,
            "bad",
            f"{place} can't be written ({failure})",
            f"{disk.purpose} can't be kept",
            f"mend its rights or mount, or move it: {disk.setting}",
        )
    if free_bytes is None:
        return Row(
            disk.id, "unknown", f"{place}: free space can't be told", f"holds {disk.purpose}"
        )
    what = f"{gb(free_bytes)} free in {place}"
    if free_bytes < FULL_DISK_BYTES:
        return Row(disk.id, "bad", what, f"too full for {disk.purpose}", move)
    if free_bytes < SMALL_DISK_BYTES:
        return Row(disk.id, "warn", what, f"little room for {disk.purpose} of a 7B model", move)
    if filesystem in ("9p", "drvfs"):
        return Row(
            disk.id,
            "warn",
            what,
            f"a Windows folder seen from WSL is many times slower for {disk.purpose}",
            f"use a folder of Linux's own: {disk.setting}",
        )
    if filesystem == "tmpfs":
        return Row(
            disk.id, "warn", what, f"{disk.purpose} take up memory, and are gone at restart", move
        )
    return Row(disk.id, "ok", what, f"room for {disk.purpose}")


def python_row(version: tuple[int, ...], prefix: str, base_prefix: str) -> Row:
    """The interpreter."""
    found = ".".join(map(str, version[:3]))
    where = "a virtual environment" if prefix != base_prefix else "the system's own installation"
    state: State = "ok" if version[:2] >= _OLDEST_PYTHON else "bad"
    oldest = ".".join(map(str, _OLDEST_PYTHON))
    fix = "" if state == "ok" else f"install Python {oldest} or later"
    return Row("python", state, f"Python {found} in {where}", f"Poros needs {oldest} or later", fix)


def wsl_row(release: str) -> Row:
    """Whether this is Linux inside Windows; ``release`` is the kernel's."""
    if not is_wsl(release):
        return Row("wsl", "ok", "not under WSL", "nothing of Windows lies between")
    if "WSL2" not in release and "microsoft-standard" not in release:
        return Row(
            "wsl",
            "bad",
            f"WSL 1 (kernel {release})",
            "WSL 1 has no GPU",
            "in Windows: wsl --set-version <distribution> 2",
        )
    return Row(
        "wsl",
        "warn",
        f"WSL 2 (kernel {release})",
        "the GPU's driver is Windows's, pinned memory is scarce, and memory is half the machine's",
        "install no driver inside WSL; raise `memory=` in %UserProfile%\\.wslconfig",
    )


def is_wsl(release: str) -> bool:
    """Whether a kernel's release is of Linux inside Windows."""
    return "microsoft" in release.lower()


def host_rows(disks: list[Disk]) -> list[Row]:
    """All rows of this machine and of the places that files go to."""
    release = os.uname().release
    memory = read_memory()
    return [
        python_row(tuple(sys.version_info[:3]), sys.prefix, sys.base_prefix),
        wsl_row(release),
        memory_row(memory),
        limit_row(memory),
        lock_row(_memlock_bytes(), is_wsl=is_wsl(release)),
        *map(_look_at_disk, disks),
    ]


def _look_at_disk(disk: Disk) -> Row:
    from poros.atomic import free_bytes

    there = _nearest(disk.path)
    free = free_bytes(there)
    return disk_row(
        disk,
        free or None,
        failure=_try_to_write(there),
        filesystem=_filesystem(there),
    )


def _try_to_write(folder: Path) -> str:
    """Why a file can't be written in a folder; empty: one was, and is gone again.

    Rights alone say nothing of quotas, read-only mounts and failing disks.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return why(error)
    return ""


def _nearest(path: Path) -> Path:
    """The path, or the first folder above it that is there."""
    path = path.expanduser().absolute()
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def _filesystem(path: Path) -> str:
    """The kind of the filesystem that a path lies on; empty: can't be told."""
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    mounts = [line.split() for line in lines if line.count(" ") >= 2]
    over = [m for m in mounts if path.is_relative_to(m[1].replace("\\040", " "))]
    return max(over, key=lambda m: len(m[1]))[2] if over else ""


def _memlock_bytes() -> int | None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
