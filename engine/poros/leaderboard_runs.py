"""A run's own folder as a row of the leaderboard: what `poros train` measured, not compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from poros.leaderboard_row import UNCOMPARED, Row, stack, streamed_method, whole
from poros.report_facts import Facts, number, read_facts


def run_rows(folder: Path) -> tuple[list[Row], str]:
    """The row of a run's folder, or why it has none.

    Raises:
        PorosConfigError: Its events can't be read.
    """
    facts = read_facts(str(folder))
    settings = {key: value for group in facts.groups.values() for key, value in group.items()}
    if not facts.steps:
        return [], "no step was made"
    return [_row(facts, settings)], ""


def _row(facts: Facts, settings: Mapping[str, Any]) -> Row:
    model = str(facts.identity.get("model") or "?").rstrip("/").rpartition("/")[2]
    durations = _of_steps(facts, "duration_s")
    # The first one warms up.
    step_s = median(durations[1:] or durations) if durations else None
    tokens = _of_steps(facts, "num_tokens")
    plan, budget = facts.records.get("plan_made", {}), number(settings.get("vram_budget"))
    device = facts.story.device
    return Row(
        model=model,
        num_layers=None,
        seq_len=whole(settings.get("max_seq_length")),
        batch_size=whole(settings.get("per_device_batch_size")) or 1,
        accumulation=whole(settings.get("gradient_accumulation_steps")) or 1,
        device=device.partition("(")[2].rstrip(")") or device,
        method=_method(plan, facts),
        num_cells=1,
        num_steps=len(facts.steps),
        step_s=step_s,
        told_tokens_per_s=median(tokens) / step_s if step_s and tokens else None,
        peak_bytes=_highest(facts, "device_peak_bytes"),
        reserved_bytes=_highest(facts, "device_reserved_bytes"),
        process_bytes=None,
        host_bytes=_highest(facts, "host_rss_bytes"),
        cap_bytes=None if budget is None else round(budget * 1e9),
        verdict=UNCOMPARED,
        num_compared=0,
        stack=stack(facts.story.versions),
        artifact=facts.known.path.name,
    )


def _method(plan: Mapping[str, Any], facts: Facts) -> str:
    on_host, resident = plan.get("on_host"), plan.get("resident")
    from_disk = bool(number(facts.records.get("model_loaded", {}).get("disk_bytes")))
    return streamed_method(
        on_host if isinstance(on_host, list) else (),
        len(resident) if isinstance(resident, list) else 0,
        from_disk=from_disk,
    )


def _of_steps(facts: Facts, name: str) -> list[float]:
    return [value for step in facts.steps.values() if (value := step.get(name))]


def _highest(facts: Facts, name: str) -> int | None:
    values = _of_steps(facts, name)
    return int(max(values)) if values else None
