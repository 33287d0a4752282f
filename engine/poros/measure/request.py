"""What a gate run asks for, as a file that the preparing process reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from poros import errors
from poros.config import PorosConfig
from poros.errors import PorosConfigError, PorosError

REQUEST_FILE = "request.json"

_TOLD = (
    "model", "num_layers", "seq_len", "batch_size", "cap_bytes", "vram_budget", "host_tier",
    "through_files",
)  # fmt: skip

REFUSAL_FILE = "refusal.json"
"""Where the preparing process leaves the error that it ended with."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to prepare.

    Args:
        target: ``demo`` (a real small model under four names), ``family`` (tiny random models),
            ``shape`` or ``config``.
        folder: Where everything goes, plan.json on top.
        model: The demo model's folder (None: the product's), the shape's name, or names of
            families.
        num_steps: Recorded steps of each cell.
        num_timing_steps: Further steps that are only timed (``shape``).
    """

    target: str
    folder: str
    model: str | None = None
    device: str = "cpu"
    num_threads: int = 1
    num_steps: int = 3
    num_timing_steps: int = 0
    num_layers: int | None = None
    seq_len: int = 512
    batch_size: int = 1
    accumulation: int = 2
    dropout: float = 0.05
    autocast: str | None = None
    block_size: int = 1
    num_slots: int = 2
    compile: bool = False
    gradient_checkpointing: bool = False
    through_files: bool = False
    variants: tuple[str, ...] = ("random",)
    """Of a ``shape``, a cell each, by `shape_cells.VARIANTS`."""
    tokenizer: str | None = None
    """Folder of the one that reads the chat data, for the variants that have it."""
    num_parallel: int | None = None
    """Processes at a time; None: on a GPU one, so that times are each arm's own."""
    vram_budget: float | str = "auto"
    """Of the streamed arm of a ``shape``: ``auto`` is the bare ring, otherwise as in a config."""
    host_tier: str = "auto"
    """Of the streamed arm of a ``shape``."""
    cap_bytes: int | None = None
    memory_map: bool = False
    """The streamed arm maps its memory."""
    quick: bool = False
    """Only the streamed run against one reference: no repetition (A), no resume (C)."""
    levels: dict[str, Any] | None = None
    """The covering array's factors (None: all), for ``demo``."""
    config: dict[str, Any] | None = None
    """The user's config, for ``config``."""


def write_request(request: Request) -> Path:
    """Put the request into its folder; returns the file."""
    folder = Path(request.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REQUEST_FILE
    path.write_text(json.dumps(asdict(request), indent=1) + "\n", encoding="utf-8")
    return path


def read_request(path: Path) -> Request:
    """The request that `write_request` wrote."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return Request(**record | {"variants": tuple(record["variants"])})


def told_request(folder: Path) -> dict[str, Any]:
    """What was asked for, without folders of this machine; empty where no request is kept."""
    path = folder / REQUEST_FILE
    if not path.exists():
        return {}
    request = read_request(path)
    told = {name: getattr(request, name) for name in _TOLD}
    if request.target == "config" and request.config is not None:
        names = {"seq_len": "max_seq_length", "batch_size": "per_device_batch_size"}
        told |= {name: request.config[key] for name, key in names.items()}
        told["model"] = Path(request.config["model_name_or_path"]).name
    elif request.target == "demo":
        told["model"] = None
    return told


def write_refusal(folder: Path, error: PorosError) -> None:
    """Leave an error for the process that started this one."""
    record = {"type": error.type, "message": error.message, "where": error.where}
    text = json.dumps(record | {"remediation": error.remediation})
    (folder / REFUSAL_FILE).write_text(text + "\n", encoding="utf-8")


def read_refusal(folder: Path) -> PorosError | None:
    """The error that `write_refusal` left, of its own kind; None: there is none."""
    path = folder / REFUSAL_FILE
    if not path.exists():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    kind: type[PorosError] = getattr(errors, record.pop("type"))
    return kind(record.pop("message"), **record)


def refuse_uncertified(config: PorosConfig) -> None:
    """Refuse a config whose run the gate can't compare with a stock one.

    Raises:
        PorosConfigError: The base is not what the product's own loader makes.
    """
    if config.nf4_load_strategy == "gpu":
        raise PorosConfigError(
            "the parity gate quantises layer by layer, not as nf4_load_strategy gpu does",
            where="nf4_load_strategy",
            remediation="delete nf4_load_strategy",
        )
