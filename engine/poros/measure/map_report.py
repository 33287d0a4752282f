"""The streamed arm's memory maps: read from the work folder, and as lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from poros.measure.plan import Plan
from poros.memory_lines import map_lines


def memory_maps(plan: Plan) -> dict[str, Any]:
    """The maps by cell; an arm that ran out of memory left one too."""
    paths = {cell.name: plan.memory_map_path(cell) for cell in plan.cells}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.exists()
    }


def memory_map_lines(maps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Every cell's map."""
    lines = []
    for name, record in maps.items():
        lines += [f"{name}: {headline(record)}", *_lines(record)]
    return lines


def headline(record: Mapping[str, Any]) -> str:
    """Which moment a map is of, and whether its sum is the allocator's own figure."""
    if not record["activations_seen"]:
        return f"memory after step {record['step']}"
    peak_bytes, torch_bytes = record["peak_bytes"], record["torch_peak_bytes"]
    maker = record["peak_made_by"]
    words = f"memory at the peak of step {record['step']}"
    if record["asked_bytes"]:
        words = (
            f"memory when step {record['step']} ran out of it,"
            f" asking for {record['asked_bytes'] / 1e6:,.1f} MB"
        )
    elif peak_bytes != torch_bytes:
        words += f" (replay {peak_bytes:,} bytes, allocator {torch_bytes:,}: they DIFFER)"
    return f"{words}, last came: {maker['name']} ({maker['place'] or 'no frame'})"


def _lines(record: Mapping[str, Any]) -> list[str]:
    groups = {_described(group): group["num_bytes"] for group in record["groups"]}
    seen = record["activations_seen"]
    lines = map_lines(groups, record["host"], activations_seen=seen)
    if seen:
        awaiting = sum(group["num_bytes"] for group in record["awaiting_free"])
        lines.append(
            f"freed, but waiting for another stream: {awaiting / 1e6:,.1f} MB;"
            f" had from the device: {record['reserved_bytes'] / 1e6:,.1f} MB then,"
            f" {record['max_reserved_bytes'] / 1e6:,.1f} at most"
        )
    return lines


def _described(group: Mapping[str, Any]) -> str:
    """A group's name with its parts and the code that made most of it."""
    words = f"{group['name']} ({group['count']}, largest {group['largest_bytes'] / 1e6:,.1f} MB"
    places: Mapping[str, int] = group["places"]
    if places:
        words += f"; {max(places, key=lambda place: places[place])}"
    return words + ")"
