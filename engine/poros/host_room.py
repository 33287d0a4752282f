"""How much memory of the host a run may take, and so where its blocks lie; needs no torch."""

from __future__ import annotations

from pathlib import Path

import psutil

ROOM_BESIDE_BYTES = 1_500_000_000
"""What a run needs beside blocks and ends: libraries, adapters' state, the work of a load."""

HOST_TIERS = ("registered", "pageable", "disk")

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def available_bytes() -> int:
    """Memory that is free, or can be made free by dropping caches, in the system and our cgroup."""
    return min([int(psutil.virtual_memory().available), *_cgroup_rooms()])


def wanted_tier(setting: str, *, needed_bytes: int, on_disk: bool) -> str:
    """The tier of a run's blocks.

    Args:
        setting: ``host_tier``; all but ``auto`` is taken as it is.
        needed_bytes: Of blocks and ends, if they lie in memory.
        on_disk: Whether the blocks' bytes lie in files as they are, or will.
    """
    if setting != "auto":
        return setting
    is_short = needed_bytes + ROOM_BESIDE_BYTES > available_bytes()
    return "disk" if is_short and on_disk else "registered"


def rss_bytes() -> int:
    """The memory that this process has now."""
    return int(psutil.Process().memory_info().rss)


def limit_bytes() -> int | None:
    """The lowest limit of our cgroup and of those around it; None: there is none."""
    limits = [_number(folder / "memory.max") for folder in _own_cgroups()]
    limits.append(_number(_CGROUPS / "memory" / "memory.limit_in_bytes"))
    return min((limit for limit in limits if limit is not None and limit < 1 << 60), default=None)


def own_cgroup() -> Path:
    """The folder in which the system counts this process's memory."""
    old = _CGROUPS / "memory" / "memory.oom_control"
    return old.parent if old.exists() else _own_cgroups()[0]


def _cgroup_rooms() -> list[int]:
    """What each limit of our cgroup and of those around it leaves, page cache not counted."""
    rooms = []
    for folder in _own_cgroups():
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            rooms.append(max(limit - used + _file_bytes(folder / "memory.stat"), 0))
    old = _CGROUPS / "memory"
    limit = _number(old / "memory.limit_in_bytes")
    used = _number(old / "memory.usage_in_bytes")
    if limit is not None and used is not None and limit < 1 << 60:
        rooms.append(max(limit - used + _file_bytes(old / "memory.stat"), 0))
    return rooms


def _own_cgroups() -> list[Path]:
    try:
        lines = _OWN_CGROUP.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return [_CGROUPS]
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = _CGROUPS / own.lstrip("/")
    inside = [f for f in (folder, *folder.parents) if f.is_relative_to(_CGROUPS)]
    return inside or [_CGROUPS]


def _number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def _file_bytes(path: Path) -> int:
    """Page cache that can be dropped: the kernel counts it as used."""
    try:
        lines = path.read_text("ascii").splitlines()
    except (OSError, ValueError):
        return 0
    counted = dict(line.rsplit(" ", 1) for line in lines if " " in line)
    return sum(int(counted.get(key, 0)) for key in ("inactive_file", "active_file"))
