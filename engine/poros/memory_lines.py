"""A memory map for people: its groups as lines of a table, the largest first."""

from __future__ import annotations

from collections.abc import Mapping

SMALL_PART = 0.002
"""Groups below this part of the whole are one line together."""


def map_lines(
    device_bytes: Mapping[str, int],
    host_bytes: Mapping[str, int],
    *,
    activations_seen: bool,
) -> list[str]:
    """The device's groups with their sum, then the host's.

    Args:
        device_bytes: By name of the group.
        host_bytes: By name of the group.
        activations_seen: Whether the device's groups are all that there was.
    """
    lines = ["on the device:", *_table(device_bytes, "together")]
    if not activations_seen:
        lines.append("  (what lies there for the whole run; activations are not seen here)")
    return [*lines, "on the host:", *_table(host_bytes, "together")]


def _table(groups: Mapping[str, int], sum_name: str) -> list[str]:
    total_bytes = sum(groups.values())
    large = {name: n for name, n in groups.items() if n >= SMALL_PART * total_bytes}
    rows = sorted(large.items(), key=lambda row: -row[1])
    num_small = len(groups) - len(large)
    if num_small:
        rows.append((f"{num_small} smaller groups", total_bytes - sum(large.values())))
    rows.append((sum_name, total_bytes))
    return [f"  {num_bytes / 1e6:>10,.1f} MB  {name}" for name, num_bytes in rows]
