"""The adapter that a user means: a PEFT folder, a run's result, or its last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros.errors import PorosConfigError, PorosModelError, escape_control
from poros.home_paths import typed_path
from poros.os_errors import why
from poros.run_folder import read_run
from poros.runs import find_run

CONFIG_FILE = "adapter_config.json"
MODEL_FILE = "config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_GIVE = "give a run's folder, or a LoRA folder that PEFT's save_pretrained wrote"


@dataclass(frozen=True)
class AdapterFolder:
    """An adapter on disk.

    Attributes:
        path: Holds its config and weights.
        config: Its adapter_config.json.
        run: The run's folder that it lies in, if any.
        note: What to tell the user of how it was found; empty: nothing.
        whole: No adapter but a whole model, which is its own base.
    """

    path: Path
    config: Mapping[str, Any]
    run: Path | None = None
    note: str = ""
    whole: bool = False

    def base(self, given: str | None) -> str:
        """Name or folder of its base model.

        Args:
            given: What the user says it is; None: what the adapter says.

        Raises:
            PorosConfigError: Neither says.
        """
        named = given or self.config.get("base_model_name_or_path")
        if not isinstance(named, str) or not named:
            raise PorosConfigError(
                "the adapter does not name its base model",
                where=escape_control(str(self.path / CONFIG_FILE)),
                remediation="name it: --base MODEL",
            )
        return named


def find_adapter(name: str, *, whole_models: bool = False) -> AdapterFolder:
    """The adapter that a name stands for.

    Args:
        name: An adapter's folder, a run's, or the beginning of a run's number.
        whole_models: Whether a model's folder will do as well.

    Raises:
        PorosConfigError: There is no such folder or run.
        PorosModelError: It holds no LoRA adapter in safetensors.
    """
    path = typed_path(name)
    if path.is_dir() and (path / CONFIG_FILE).is_file():
        return AdapterFolder(path, _read(path), _run_around(path))
    if path.is_dir() and read_run(path) is None and (path / MODEL_FILE).is_file():
        if whole_models:
            return AdapterFolder(path, {"base_model_name_or_path": str(path)}, whole=True)
        raise _refused(path, "a whole model, and an adapter is wanted here")
    if path.is_dir() and read_run(path) is None:
        raise _refused(path, f"the folder has no {CONFIG_FILE} and is no run's")
    if path.exists() and not path.is_dir():
        raise _refused(path, "a file, not a folder")
    try:
        run = find_run(name).path
    except PorosConfigError as error:
        raise PorosConfigError(
            f"no folder, and no run, is named {escape_control(name)}", remediation=_GIVE
        ) from error
    return _of_run(run)


def _of_run(run: Path) -> AdapterFolder:
    if (run / "adapter" / CONFIG_FILE).is_file():
        return AdapterFolder(run / "adapter", _read(run / "adapter"), run)
    steps = sorted((run / "checkpoints").glob(f"step-*/{CONFIG_FILE}"))
    if not steps:
        what = "has neither an adapter nor a checkpoint yet" if run.is_dir() else "is gone"
        raise PorosConfigError(
            f"the run {what}", where=escape_control(str(run)), remediation="train it first"
        )
    path = steps[-1].parent
    note = f"the run has not ended: this is its checkpoint {path.name}"
    return AdapterFolder(path, _read(path), run, note)


def _run_around(path: Path) -> Path | None:
    parents = path.resolve().parents
    return next((folder for folder in parents[:2] if read_run(folder) is not None), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / CONFIG_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(path, f"{CONFIG_FILE} can't be read ({why(error)})") from error
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"{CONFIG_FILE} is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise _refused(path, f"{CONFIG_FILE} is not a JSON object")
    if config.get("peft_type") != "LORA":
        raise _refused(path, f"the adapter is of type {config.get('peft_type')}, not LORA")
    if not (path / WEIGHTS_FILE).is_file():
        pickled = (path / "adapter_model.bin").is_file()
        held = "; only a pickle, which Poros never reads" if pickled else ""
        raise _refused(path, f"the adapter has no {WEIGHTS_FILE}{held}")
    return config


def _refused(path: Path, reason: str) -> PorosModelError:
    return PorosModelError(reason, where=escape_control(str(path)), remediation=_GIVE)
