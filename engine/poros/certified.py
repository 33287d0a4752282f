"""Which families are proved at which precision on which stack: read from certified.json.

That file is made from docs/validation by tests/layout/certified.py and ships with the package.
Nothing else is read, so no setting, variable or record of a user's own can add to it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

_FILE = "certified.json"


@dataclass(frozen=True, kw_only=True, order=True)
class Stack:
    """What a proof holds for beside the model; empty: not there.

    Attributes:
        torch: Major and minor version, ``2.11``.
        transformers: Major and minor version.
        bitsandbytes: Its whole version: its kernels change between patches.
        compute_capability: The GPU's, ``9.0``; empty on the CPU.
    """

    torch: str
    transformers: str
    bitsandbytes: str
    compute_capability: str

    def __str__(self) -> str:
        """The stack in words."""
        packages = ", ".join(
            f"{name} {getattr(self, name) or 'not installed'}"
            for name in ("torch", "transformers", "bitsandbytes")
        )
        gpu = self.compute_capability
        return f"{packages}, {f'compute capability {gpu}' if gpu else 'no GPU'}"


@dataclass(frozen=True, kw_only=True, order=True)
class Cell:
    """One proof.

    Attributes:
        model_type: The family, by its entry's name.
        precision: ``nf4`` or ``bf16``.
        stack: Where it was run.
        sizes: ``real``, or ``tiny``: a small model with all kinds of layers of the family.
        weights: ``random`` proves the arithmetic at the model's sizes, not a checkpoint's files.
        exceptions: What strict determinism had to allow, in both arms.
        artifacts: Folders of docs/validation.
    """

    model_type: str
    precision: str
    stack: Stack
    sizes: str
    weights: str
    exceptions: tuple[str, ...]
    artifacts: tuple[str, ...]


@cache
def certified_cells() -> tuple[Cell, ...]:
    """All proofs that this version of Poros ships with."""
    text = Path(__file__).with_name(_FILE).read_text("utf-8")
    return tuple(
        Cell(
            model_type=cell["model_type"],
            precision=cell["precision"],
            stack=Stack(**cell["stack"]),
            sizes=cell["sizes"],
            weights=cell["weights"],
            exceptions=tuple(cell["exceptions"]),
            artifacts=tuple(cell["artifacts"]),
        )
        for cell in json.loads(text)["cells"]
    )


def minor(version: str) -> str:
    """``2.11`` of ``2.11.0+cu130``; empty where it isn't a version."""
    found = re.match(r"\d+\.\d+", version)
    return found[0] if found else ""


def this_stack() -> Stack:
    """What is installed here, and its first GPU; loads neither torch nor a driver's context."""
    return Stack(
        torch=minor(_version("torch")),
        transformers=minor(_version("transformers")),
        bitsandbytes=_version("bitsandbytes"),
        compute_capability=_compute_capability(),
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _compute_capability() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor_ = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()
    return f"{major}.{minor_}"
