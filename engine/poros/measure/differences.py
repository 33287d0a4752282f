"""A closer look at a FAIL: both arms make the cell again and write out the first differing item.

Digests say that two tensors differ, not by how much. Keeping every tensor of every step would
take gigabytes; making one cell again takes a minute, and only after a failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from poros.measure.arms import product_job, reference_job, run_jobs
from poros.measure.compare import Verdict
from poros.measure.fingerprint import difference
from poros.measure.plan import Plan, write_plan

_MOST = 3


def look_closer(
    plan: Plan, verdicts: Sequence[Verdict], runner: dict[str, Any]
) -> list[dict[str, Any]]:
    """The size of the first difference of the first few failed cells.

    Args:
        plan: The gate's plan.
        verdicts: All of its verdicts.
        runner: Keyword arguments of `run_jobs`.
    """
    first: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.first_difference is not None and verdict.claim not in ("A", "C"):
            first.setdefault(verdict.cell, verdict)
    found = []
    for number, verdict in enumerate(list(first.values())[:_MOST]):
        found.append(_measure(plan, verdict, plan.folder / f"closer-{number}", runner))
    return found


def _measure(plan: Plan, verdict: Verdict, folder: Path, runner: dict[str, Any]) -> dict[str, Any]:
    where = verdict.first_difference
    assert where is not None
    cell = plan.cell(verdict.cell)
    cell = dataclasses.replace(
        cell,
        adapter=str(plan.folder / cell.adapter),
        batches=str(plan.folder / cell.batches),
        num_timing_steps=0,
    )
    dump = {"cell": cell.name, "step": where.step, "item": where.item, "folder": str(folder)}
    write_plan(dataclasses.replace(plan, folder=folder, cells=(cell,), dump=dump))
    jobs = [
        reference_job("reference-closer", folder, folder / "reference.jsonl"),
        product_job("streamed-closer", "streamed_arm", folder, folder / "streamed.jsonl"),
    ]
    run_jobs(jobs, num_parallel=1, **runner)
    record = {"cell": cell.name, "claim": verdict.claim, "step": where.step, "item": where.item}
    files = [folder / "reference.safetensors", folder / "streamed.safetensors"]
    if not all(file.exists() for file in files):
        return record | {"reason": "one arm did not make this item again"}
    left, right = (load_file(file)["item"] for file in files)
    size = difference(where.item, left, right)
    return record | (size.as_dict() if size else {"reason": "equal when made again"})
