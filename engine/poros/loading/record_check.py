"""A family's record against the model that transformers builds: they agree, or nothing starts."""

from __future__ import annotations

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_table import ArchSpec
from poros.errors import PorosModelError
from poros.weights_index import short_list


class RecordError(PorosModelError):
    """The record is wrong: no fault of the checkpoint, nor of what a cache holds of it."""


def resident_paths(model: nn.Module, architecture: ArchSpec) -> list[str]:
    """The modules that stay on the device, those among them that only some configs have."""
    present = {path for path, _ in model.named_modules()}
    sometimes = [path for path in architecture.resident_if_present if path in present]
    return [*architecture.resident, *sometimes]


def check_transformers(architecture: ArchSpec) -> None:
    """Refuse a transformers that computes the family otherwise, or not at all.

    Raises:
        PorosModelError: With the version that is needed.
    """
    least = architecture.min_transformers
    is_old = bool(least) and _numbers(transformers.__version__) < _numbers(least)
    if is_old or architecture.model_type not in CONFIG_MAPPING:
        needed = f"transformers {least} or later" if least else "another transformers"
        raise PorosModelError(
            f"{architecture.model_type} needs {needed}; this is {transformers.__version__}",
            where=f"model_type {architecture.model_type}",
            remediation=f"pip install 'transformers>={least}'"
            if least
            else "pip install --upgrade transformers",
        )


def check_record(model: PreTrainedModel, architecture: ArchSpec, dtype: torch.dtype) -> None:
    """Refuse a record that does not describe the model: it would train on part of it.

    Raises:
        RecordError: With the record's field and what is wrong with it.
    """
    modules = dict(model.named_modules())
    layers = modules.get(architecture.layers_path)
    if type(model).__name__ != architecture.hf_class:
        wrong = f"hf_class is {architecture.hf_class}, transformers builds {type(model).__name__}"
    elif not isinstance(layers, nn.ModuleList) or not len(layers):
        wrong = f"layers_path {architecture.layers_path!r} is no list of layers in the model"
    elif lost := [path for path in architecture.resident if path not in modules]:
        wrong = f"resident names what the model has not: {', '.join(lost)}"
    elif held := [p for p in architecture.resident if _overlap(p, architecture.layers_path)]:
        wrong = f"resident names what holds the layers, or lies in them: {', '.join(held)}"
    elif fixed := _outside_the_record(model, architecture):
        wrong = f"neither in a layer nor among the resident modules: {short_list(fixed)}"
    elif kept := model._get_dtype_plan(dtype):
        wrong = f"transformers keeps modules in float32, which Poros can't: {', '.join(kept)}"
    else:
        return
    raise RecordError(
        wrong,
        where=f"the record of {architecture.model_type}",
        remediation="correct the record (docs/adding-a-model.md), or report it if it is Poros's",
    )


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _outside_the_record(model: PreTrainedModel, architecture: ArchSpec) -> list[str]:
    inside = (
        f"{architecture.layers_path}.",
        *(f"{path}." for path in resident_paths(model, architecture)),
    )
    named = [*model.named_parameters(), *model.named_buffers()]
    return [name for name, _ in named if not name.startswith(inside)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
