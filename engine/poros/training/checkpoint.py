"""A run's state on disk, in the one layout that checkpoints and `save()` share.

- `adapter_config.json`, `adapter_model.safetensors`, `README.md`: PEFT's standard files;
- `poros_state/`: optimizer.safetensors, rng.safetensors, trainer.json, and manifest.json with the
  sha256 of every other file.

Nothing in it is ever unpickled, and nothing that the manifest does not name is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from poros import atomic, failpoints
from poros.errors import PorosNonFiniteError, PorosResumeError, escape_control
from poros.loading.tensor_writer import write_tensors
from poros.training.determinism import rng_state, set_rng_state
from poros.training.lora import save_adapter
from poros.training.optimizer import MOMENTS, AdapterAdamW, Params

FORMAT = 1

STATE = "poros_state"
MANIFEST = f"{STATE}/manifest.json"

_SUFFIXES = (".json", ".safetensors", ".md")
_KINDS = ("step", *MOMENTS)
_SMALL_FILES_BYTES = 65536


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What a checkpoint knows beside tensors (`trainer.json`).

    Attributes:
        run_id: The run that wrote it.
        step: Optimizer steps done.
        cursor: Where the data go on.
        events_bytes: Length of the event file at this step.
        loss: Of the last step.
        exact: False once the run was continued under changed conditions.
        inputs: Everything the bits depend on, by name.
    """

    run_id: str
    step: int
    cursor: dict[str, int]
    events_bytes: int
    loss: float | None
    exact: bool
    inputs: dict[str, Any]


def save_checkpoint(
    folder: Path,
    *,
    model: PeftModel,
    params: Params,
    optimizer: AdapterAdamW,
    device: torch.device,
    state: TrainerState,
) -> int:
    """Write everything that `load_checkpoint` reads; returns its size in bytes.

    Raises:
        PorosStorageError: Disk full or failing; nothing of it is left.
        PorosNonFiniteError: A weight is NaN or infinite; nothing is written.
    """
    optimizer.settle()
    _refuse_non_finite(params, state.step)
    failpoints.hit("checkpoint.begin")
    about = {"format": FORMAT, "run_id": state.run_id, "step": state.step}
    with atomic.atomic_dir(
        folder,
        manifest=MANIFEST,
        about=about,
        needed_bytes=needed_bytes(params),
        if_exists="replace",
    ) as temp:
        save_adapter(model, temp)
        failpoints.hit("checkpoint.adapter")
        (temp / STATE).mkdir()
        write_tensors(_moments(params, optimizer), temp / STATE / "optimizer.safetensors")
        write_tensors(rng_state(device), temp / STATE / "rng.safetensors")
        failpoints.hit("checkpoint.tensors")
        text = json.dumps(asdict(state), indent=1, allow_nan=False)
        (temp / STATE / "trainer.json").write_text(text + "\n")
    return atomic.size_of(folder)


def needed_bytes(params: Params) -> int:
    """About what a checkpoint takes: weights and two moments."""
    weights = sum(p.numel() * p.element_size() for _, p in params)
    return 3 * weights + _SMALL_FILES_BYTES


def load_checkpoint(
    folder: Path, *, params: Params, optimizer: AdapterAdamW, device: torch.device
) -> None:
    """Put optimizer and random states back; the adapter is loaded by `attach_lora`.

    Raises:
        PorosResumeError: The state does not fit this model.
    """
    moments = _read_tensors(folder, "optimizer")
    expected = {f"{kind}.{name}" for name, _ in params for kind in _KINDS}
    if moments and moments.keys() != expected:
        wrong = sorted(moments.keys() ^ expected)[0]
        raise refused(folder, f"{STATE}/optimizer.safetensors does not fit the model ({wrong})")
    for name, parameter in params if moments else ():
        optimizer.restore(parameter, {kind: moments[f"{kind}.{name}"] for kind in _KINDS})
    set_rng_state(_read_tensors(folder, "rng"), device)


def verify(folder: Path) -> TrainerState:
    """Check every byte of a checkpoint and read what it says of itself.

    Raises:
        PorosResumeError: Names the file and what is wrong with it.
    """
    manifest = _read_manifest(folder)
    files: dict[str, dict[str, Any]] = manifest["files"]
    _refuse_other_names(folder, set(files) | {MANIFEST})
    for name, expected in files.items():
        path = folder / name
        if path.stat().st_size != expected.get("num_bytes"):
            raise refused(folder, f"{name} has another size than the manifest says")
        if atomic.sha256_of(path) != expected.get("sha256"):
            raise refused(folder, f"{name} has another sha256 than the manifest says")
    state = _read_state(folder)
    if (state.run_id, state.step) != (manifest.get("run_id"), manifest.get("step")):
        raise refused(folder, "trainer.json and the manifest are of different checkpoints")
    return state


def refused(folder: Path, reason: str) -> PorosResumeError:
    """The error about a checkpoint that can't be used."""
    return PorosResumeError(
        f"checkpoint refused: {reason}",
        where=escape_control(str(folder)),
        remediation="use another checkpoint of the run (--resume PATH), or --resume never",
    )


def _refuse_non_finite(params: Params, step: int) -> None:
    for name, parameter in params:
        if not parameter.isfinite().all():
            raise PorosNonFiniteError(
                f"the weight {name} is not finite",
                where=f"step {step}",
                remediation="lower learning_rate",
            )


def _moments(params: Params, optimizer: AdapterAdamW) -> dict[str, Tensor]:
    """The optimizer's tensors by the weight's name; empty before the first step."""
    return {
        f"{kind}.{name}": optimizer.state[parameter][kind]
        for name, parameter in params
        if parameter in optimizer.state
        for kind in _KINDS
    }


def _read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    try:
        return load_file(folder / STATE / f"{name}.safetensors")
    except (OSError, SafetensorError) as error:
        raise refused(folder, f"{STATE}/{name}.safetensors: {error}") from error


def _read_manifest(folder: Path) -> Mapping[str, Any]:
    manifest = _read_json(folder, MANIFEST)
    found = manifest.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise refused(folder, f"its format {found} is of a later version than this one's {FORMAT}")
    files = manifest.get("files")
    if found != FORMAT or not isinstance(files, dict):
        raise refused(folder, f"{MANIFEST} is not a checkpoint's")
    if not all(isinstance(entry, dict) for entry in files.values()):
        raise refused(folder, f"{MANIFEST} is damaged")
    return manifest


def _refuse_other_names(folder: Path, expected: set[str]) -> None:
    found = set()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            raise refused(folder, f"{escape_control(name)} is a link")
        if not path.is_dir():
            found.add(name)
    for name in sorted(expected - found):
        raise refused(folder, f"{escape_control(name)} is missing")
    for name in sorted(found - expected):
        raise refused(folder, f"{escape_control(name)} is not in the manifest")
    for name in sorted(found):
        if not name.endswith(_SUFFIXES):
            raise refused(folder, f"{escape_control(name)} is neither safetensors nor JSON")


def _read_state(folder: Path) -> TrainerState:
    try:
        state = TrainerState(**_read_json(folder, f"{STATE}/trainer.json"))
        whole = isinstance(state.step, int) and isinstance(state.events_bytes, int)
        if not whole or not isinstance(state.inputs, dict) or set(state.cursor) != _CURSOR_KEYS:
            raise TypeError("a field has another type")
    except TypeError as error:
        raise refused(folder, f"{STATE}/trainer.json: {error}") from error
    return state


_CURSOR_KEYS = {"epoch", "position"}


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if path.is_symlink():
        raise refused(folder, f"{name} is a link")
    try:
        text = path.read_text("utf-8")
        content = json.loads(text)
    except FileNotFoundError as error:
        raise refused(folder, f"{name} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise refused(folder, f"{name} is damaged: {error}") from error
    if not isinstance(content, dict) or not text.endswith("\n"):
        raise refused(folder, f"{name} is damaged")
    return content
