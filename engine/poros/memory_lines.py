"""A memory map and a plan for people, as lines; of the map, the largest groups first."""

from __future__ import annotations

from collections.abc import Mapping

from poros.events import Event, PlanMade, PlanMeasured
from poros.told_sizes import told_size

_IN_WORDS = {"boundaries": "hidden states between layers", "moments": "Adam's moments"}

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


def plan_lines(event: Event) -> list[str]:
    """What is said of a plan: when made and when measured; of other events nothing."""
    if isinstance(event, PlanMade):
        return _made(event)
    return [_measured(event)] if isinstance(event, PlanMeasured) else []


def _made(plan: PlanMade) -> list[str]:
    place = f"{len(plan.resident)} of {plan.num_blocks} blocks stay on the device"
    place += f", the others pass through {plan.num_slots} slots" if plan.num_slots else ""
    if plan.on_host:
        place += f"; on the host: {', '.join(_IN_WORDS.get(n, n) for n in plan.on_host)}"
    lines = [f"plan: {place}"]
    if plan.peak_bytes:
        budget = f" of {told_size(plan.budget_bytes)}" if plan.budget_bytes is not None else ""
        how = "measured before" if plan.from_measured else "expected"
        time = f", {plan.step_s:.2f} s/step" if plan.step_s is not None else ""
        lines.append(
            f"  {how}: peak {told_size(plan.peak_bytes)}{budget} ({plan.peak_phase}),"
            f" {told_size(plan.device_bytes)} of the card{time}; bottleneck {plan.bottleneck}"
        )
    return lines


def _measured(found: PlanMeasured) -> str:
    peak, time = "", f"{found.step_s:.2f} s/step"
    if found.peak_bytes:
        expected = told_size(found.expected_peak_bytes)
        peak = f"peak {told_size(found.peak_bytes)} ({expected} expected), "
    if found.expected_step_s is not None:
        time += f" ({found.expected_step_s:.2f} expected)"
    return f"measured: {peak}{time}"


def _table(groups: Mapping[str, int], sum_name: str) -> list[str]:
    total_bytes = sum(groups.values())
    large = {name: n for name, n in groups.items() if n >= SMALL_PART * total_bytes}
    rows = sorted(large.items(), key=lambda row: -row[1])
    num_small = len(groups) - len(large)
    if num_small:
        rows.append((f"{num_small} smaller groups", total_bytes - sum(large.values())))
    rows.append((sum_name, total_bytes))
    return [f"  {_megabytes(num_bytes):>10} MB  {name}" for name, num_bytes in rows]


def _megabytes(num_bytes: int) -> str:
    """More digits where one would say 0.0."""
    return f"{num_bytes / 1e6:,.{1 if num_bytes >= 1e5 or not num_bytes else 4}f}"
