"""The gate's processes for a plan: which arm runs which cells, and where its records lie."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from poros.measure.arms import Job, product_job, reference_job
from poros.measure.plan import Cell, Plan
from poros.measure.records import ArmRecord, read_records
from poros.measure.request import Request

ARMS = ("reference", "reference-again", "streamed", "resumed", "reference-default")
"""Each writes ``ARM.jsonl``; the last one, stock without determinism, is only timed."""
COMPARED = ("reference", "streamed")
ALONE = ".alone-"


def jobs_of(plan: Plan, mutants: bool) -> list[Job]:
    """The longest first, so that two workers end together.

    Those are the mutants, but for families: they have few.
    """
    work = plan.folder
    first = plan.cells[0].name
    jobs = [
        product_job("streamed", "streamed_arm", work, work / "streamed.jsonl"),
        reference_job("reference", work, work / "reference.jsonl"),
    ]
    if plan.target == "shape" and len(plan.cells) > 1:
        # A process each: the peak of one must not be that of another.
        jobs = [_alone(plan, cell, arm) for cell in plan.cells for arm in COMPARED]
    if mutants:
        place = len(jobs) if plan.target == "family" else 0
        jobs.insert(place, product_job("mutants", "mutants", work, work / "mutants.json"))
    if any(cell.resume_at is not None for cell in plan.cells):
        resumed = product_job("resumed", "resume_arm", work, work / "resumed.jsonl")
        jobs.append(dataclasses.replace(resumed, after="streamed"))
    if plan.quick:
        return jobs
    again = ("--cells", first)
    jobs.append(reference_job("reference-again", work, work / "reference-again.jsonl", *again))
    if any(cell.num_timing_steps for cell in plan.cells):
        output = work / "reference-default.jsonl"
        jobs.append(reference_job("reference-default", work, output, "--only-time"))
    return jobs


def missing_jobs(plan: Plan) -> list[Job]:
    """Cells that an arm did not reach because one before them failed, each in its own process."""
    done = {arm: read_arm(plan.folder, arm) for arm in COMPARED}
    return [
        _alone(plan, cell, arm)
        for arm in COMPARED
        for cell in plan.cells
        if cell.name not in done[arm]
    ]


def _alone(plan: Plan, cell: Cell, arm: str) -> Job:
    """One arm's run of one cell, in a process of its own."""
    name = f"{arm}{ALONE}{cell.name.replace('/', '-')}"
    output = plan.folder / f"{name}.jsonl"
    if arm == "reference":
        return reference_job(name, plan.folder, output, "--cells", cell.name)
    return product_job(name, "streamed_arm", plan.folder, output, "--cells", cell.name)


def num_parallel(request: Request) -> int:
    """Two processes on the CPU, of one thread each; one at a time where time is measured."""
    if request.num_parallel is not None:
        return request.num_parallel
    if request.device != "cpu":
        return 1
    return max(1, min(2, (os.cpu_count() or 1) // request.num_threads))


def read_arm(work: Path, arm: str) -> dict[str, ArmRecord]:
    """What an arm wrote, in one process or in several."""
    return read_records(work / f"{arm}.jsonl", *sorted(work.glob(f"{arm}{ALONE}*.jsonl")))
