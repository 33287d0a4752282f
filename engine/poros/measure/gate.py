"""`poros parity`: the streamed run against the stock resident one, byte for byte.

It prepares a plan, runs each arm as a process of its own, compares what they wrote, and ends with
0 only if every claim of every cell is PASS and every mutant went red where it should.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from poros import atomic
from poros.errors import PorosParityError
from poros.measure import report
from poros.measure.arms import Ended, product_job, run_jobs
from poros.measure.artifacts import environment, write_hashes, write_json
from poros.measure.compare import KINDS, Verdict, judge
from poros.measure.differences import look_closer
from poros.measure.family_models import families_of, refuse_without_side_tensors
from poros.measure.gate_jobs import ALONE, ARMS, jobs_of, missing_jobs, num_parallel, read_arm
from poros.measure.map_report import memory_maps
from poros.measure.plan import Cell, Plan, read_plan
from poros.measure.records import ArmRecord
from poros.measure.request import (
    REFUSAL_FILE,
    Request,
    read_refusal,
    refuse_uncertified,
    told_request,
    write_request,
)
from poros.measure.shapes import shape_config
from poros.weights_index import read_file_header

SCHEMA = 1
DEMO_STEPS = 20
SHAPE_STEPS = 10
FAMILY_STEPS = 3
CONFIG_STEPS = 5

NOT_COMPARED = ("prepare", "reference-default")
"""Jobs that write nothing that is compared."""

QUICK_LEAVES_OUT = ("A", "C")

_FOR_CONFIG = ("cap_bytes", "memory_map", "num_threads", "quick")
"""The options that a config does not hold itself."""

_OF_FORMER_REQUESTS = (
    "plan.json", REFUSAL_FILE, "mutants.json", "loads.jsonl", "adapters", "batches",
    "checkpoint", "checkpoints", "closer-*", "logs", "memory-map-*.json",
    *(f"{arm}{ending}" for arm in ARMS for ending in (".jsonl", ".alone-*")),
)  # fmt: skip
"""All but the NF4 cache and the relabelled models, which are kept by what they are made from."""


@dataclass
class Outcome:
    """Everything that a gate run found."""

    plan: Plan
    verdicts: list[Verdict]
    arms: dict[str, dict[str, ArmRecord]]
    jobs: dict[str, Ended]
    mutants: list[dict[str, Any]] | None = None
    differences: list[dict[str, Any]] = field(default_factory=list)
    duration_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every claim was made and is PASS, every job ended well, every mutant went red."""
        words = [mutant["ok"] for mutant in self.mutants or []]  # None: not applicable here
        mutants_red = self.mutants is None or (True in words and False not in words)
        may_lack = QUICK_LEAVES_OUT if self.plan.quick else ()
        complete = set(self.not_claimed) <= set(may_lack)
        return complete and self._all_pass() and mutants_red and not self.failed_jobs

    @property
    def not_claimed(self) -> list[str]:
        """Claims about which there is no verdict at all."""
        made = {verdict.claim for verdict in self.verdicts}
        return [claim for claim in KINDS if claim not in made]

    @property
    def failed_jobs(self) -> list[str]:
        """Jobs whose records are compared and that failed; ``alone`` ones stand for their arm."""
        replaced = {name.partition(ALONE)[0] for name in self.jobs if ALONE in name}
        return [
            name
            for name, job in self.jobs.items()
            if job.exit_code != 0 and name not in replaced and name not in NOT_COMPARED
        ]

    def _all_pass(self) -> bool:
        return all(verdict.word == "PASS" for verdict in self.verdicts)


def run_parity(
    config: Any = None,
    *,
    demo: bool = False,
    shape: str | None = None,
    family: str | None = None,
    steps: int | None = None,
    mutants: bool = False,
    json_lines: bool = False,
    output: Path | None = None,
    **options: Any,
) -> int:
    """Run the gate and show its report; the exit code.

    Args:
        config: A validated config whose model, batch and adapter settings make the one cell.
        demo: The covering array over the built-in demo's model.
        shape: Random weights in a real shape, by name.
        family: Tiny random models of a family, of several (with commas), or of ``all``.
        steps: Recorded steps of each cell.
        mutants: Also break each protection and see it turn red.
        json_lines: The report as JSON on stdout.
        output: Folder for the artifacts.
        options: Further fields of `Request`, and ``keep_going``.

    Raises:
        PorosError: What went wrong before there was anything to compare.
    """
    keep_going = options.pop("keep_going", False)
    with _work_folder(options.pop("work", None)) as work:
        request = _request(config, demo, shape, family, steps, work, options)
        if mutants and family is not None:
            refuse_without_side_tensors(family)
        outcome = run_gate(request, mutants=mutants, say=_say, keep_going=keep_going)
        record = record_of(outcome)
        if output is not None:
            write_artifacts(output, outcome, record)
    if json_lines:
        sys.stdout.write(json.dumps(record, default=str) + "\n")
    else:
        report.show(record)
    return 0 if outcome.passed else PorosParityError.exit_code


def run_gate(
    request: Request, *, mutants: bool, say: report.Say, keep_going: bool = False
) -> Outcome:
    """Prepare, run all arms, judge."""
    started_s = time.monotonic()
    work = Path(request.folder)
    forget_former(work)
    logs, at_once = work / "logs", num_parallel(request)
    runner: dict[str, Any] = {"logs": logs, "num_threads": request.num_threads, "say": say}
    prepared = product_job("prepare", "prepare", write_request(request))
    jobs = run_jobs([prepared], num_parallel=1, **runner)
    if jobs["prepare"].exit_code != 0:
        raise read_refusal(work) or PorosParityError(
            "the gate could not prepare its model and batches",
            where=_last_line(jobs["prepare"]),
            remediation="the line above is the cause",
        )
    plan = read_plan(work)
    jobs |= run_jobs(jobs_of(plan, mutants), num_parallel=at_once, **runner)
    if keep_going:
        jobs |= run_jobs(missing_jobs(plan), num_parallel=at_once, **runner)
    arms = {arm: read_arm(work, arm) for arm in ARMS}
    outcome = Outcome(plan, judge_all(plan, arms), arms, jobs)
    outcome.differences = look_closer(plan, outcome.verdicts, runner)
    if mutants:
        outcome.mutants = _read_list(work / "mutants.json")
    outcome.duration_s = time.monotonic() - started_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome.cpu_s = used.ru_utime + used.ru_stime
    return outcome


def forget_former(work: Path) -> None:
    """Remove what former requests left: an arm that fails must not find a record of its own."""
    for pattern in _OF_FORMER_REQUESTS:
        for path in work.glob(pattern):
            atomic.remove(path)


def judge_all(plan: Plan, arms: dict[str, dict[str, ArmRecord]]) -> list[Verdict]:
    """Every claim about every cell that the plan makes."""
    verdicts = []
    reference, streamed = arms["reference"], arms["streamed"]
    for number, cell in enumerate(plan.cells):
        count = num_adapter_tensors(plan, cell)
        left, right = reference.get(cell.name), streamed.get(cell.name)
        if number == 0 and not plan.quick:
            again = arms["reference-again"].get(cell.name)
            verdicts.append(judge("A", cell, left, again, num_adapter_tensors=count))
        verdicts += [
            judge(claim, cell, left, right, num_adapter_tensors=count)
            for claim in ("B-fwd", "B-bwd", "D")
        ]
        if cell.resume_at is not None:
            verdicts.append(
                judge(
                    "C",
                    cell,
                    right,
                    arms["resumed"].get(cell.name),
                    num_adapter_tensors=count,
                    steps=range(cell.resume_at + 1, cell.num_steps + 1),
                )
            )
    if not plan.quick and all(cell.resume_at is None for cell in plan.cells):
        reason = "no cell is interrupted: that takes a step before and one after"
        verdicts.append(Verdict("C", plan.cells[0].name, "REFUSED", 0, 0, reason))
    return verdicts


def num_adapter_tensors(plan: Plan, cell: Cell) -> int:
    """Tensors in the cell's adapter file, from its header."""
    return len(read_file_header(plan.folder / cell.adapter / "adapter_model.safetensors"))


def write_artifacts(folder: Path, outcome: Outcome, record: dict[str, Any]) -> None:
    """gate.json, the hashes of each arm that recorded steps, and mutants.json."""
    for former in (*folder.glob("hashes-*.jsonl.gz"), folder / "mutants.json"):
        atomic.remove(former)
    write_json(folder / "gate.json", record)
    for name, records in outcome.arms.items():
        if any(arm.steps for arm in records.values()):
            path = folder / f"hashes-{name}.jsonl.gz"
            write_hashes(path, records, outcome.verdicts, whole=name == "reference")
    if outcome.mutants is not None:
        write_json(folder / "mutants.json", outcome.mutants)


def _request(
    config: Any,
    demo: bool,
    shape: str | None,
    family: str | None,
    steps: int | None,
    work: Path,
    options: dict[str, Any],
) -> Request:
    given = {key: value for key, value in options.items() if value is not None}
    wanted = given.pop("device", None)
    device = wanted or ("cuda:0" if torch.cuda.is_available() else "cpu")
    if demo:
        return Request(
            target="demo", folder=str(work), device="cpu", num_steps=steps or DEMO_STEPS, **given
        )
    if family is not None:
        families_of(family)  # so is this one
        return Request(
            target="family", folder=str(work), model=family, device=wanted or "cpu",
            num_steps=steps or FAMILY_STEPS, **given,
        )  # fmt: skip
    if shape is not None:
        shape_config(shape)  # a wrong name is told before a process starts
        num_threads = 1 if device == "cpu" else max(1, (os.cpu_count() or 2) // 2)
        given = {"num_threads": num_threads} | given
        return Request(
            target="shape", folder=str(work), model=shape, device=device,
            num_steps=steps or SHAPE_STEPS, **given,
        )  # fmt: skip
    refuse_uncertified(config)
    given = {"num_threads": config.cpu_threads or 1} | given
    return Request(
        target="config",
        folder=str(work),
        config=config.model_dump(mode="json"),
        device=device if config.device == "auto" else config.device,
        num_steps=steps or CONFIG_STEPS,
        **{key: value for key, value in given.items() if key in _FOR_CONFIG},
    )


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="poros-parity-") as folder:
        yield Path(folder)


def record_of(outcome: Outcome) -> dict[str, Any]:
    """The whole outcome for JSON and for the report."""
    return {
        "schema": SCHEMA,
        "passed": outcome.passed,
        "duration_s": outcome.duration_s,
        "cpu_s": outcome.cpu_s,
        "environment": environment(),
        "device": outcome.plan.device,
        "num_threads": outcome.plan.num_threads,
        "cells": [report.cell_record(cell) for cell in outcome.plan.cells],
        "quick": outcome.plan.quick,
        "target": outcome.plan.target,
        "request": told_request(outcome.plan.folder),
        "notes": list(outcome.plan.notes),
        "verdicts": [verdict.as_dict() for verdict in outcome.verdicts],
        "not_claimed": outcome.not_claimed,
        "failed_jobs": outcome.failed_jobs,
        "differences": outcome.differences,
        "mutants": outcome.mutants,
        "loads": _read_lines(outcome.plan.folder / "loads.jsonl"),
        "jobs": [job.as_record() for job in outcome.jobs.values()],
        "measurements": report.measurements(outcome.plan, outcome.arms),
        "memory_maps": memory_maps(outcome.plan),
    }


def _read_list(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return records


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _last_line(job: Ended) -> str:
    return job.last_lines.splitlines()[-1] if job.last_lines else "no output"


def _say(sentence: str) -> None:
    sys.stderr.write(f"parity: {sentence}\n")
