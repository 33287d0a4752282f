"""The gate's evidence on disk, kept small: roots for every step, digests for three of them."""

from __future__ import annotations

import gzip
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from poros._version import __version__
from poros.measure.compare import Verdict
from poros.measure.records import ArmRecord

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "accelerate", "safetensors", "numpy")


def environment() -> dict[str, Any]:
    """What the verdicts hold for."""
    record: dict[str, Any] = {
        "poros": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_cpus": os.cpu_count(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        record |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return record


def write_json(path: Path, record: Any) -> None:
    """Write one JSON file, whole lines and a newline at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


def write_hashes(
    path: Path, arms: Mapping[str, ArmRecord], verdicts: Iterable[Verdict], *, whole: bool
) -> None:
    """A line per cell and step: the root always; every digest for the steps that matter.

    Args:
        path: A .jsonl.gz file.
        arms: Each cell's record.
        verdicts: They name the first differing steps.
        whole: Every digest of each cell's first and last step too. One arm will do: where the
            other's root is the same, so are its digests.
    """
    matter = {
        (verdict.cell, verdict.first_difference.step)
        for verdict in verdicts
        if verdict.first_difference is not None
    }
    for arm in arms.values() if whole else ():
        matter |= {(arm.cell, step.step) for step in (*arm.steps[1:2], *arm.steps[-1:])}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
        for arm in arms.values():
            for line in _lines(arm, matter):
                packed.write((json.dumps(line) + "\n").encode())


def _lines(arm: ArmRecord, matter: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    names: list[str] = []
    for step in arm.steps:
        line: dict[str, Any] = {"cell": arm.cell, "step": step.step, "root": step.root}
        line |= {"num_items": len(step.digests)} | step.values
        if (arm.cell, step.step) in matter:
            if names != list(step.digests):
                names = line["names"] = list(step.digests)
            line["digests"] = list(step.digests.values())
        yield line
