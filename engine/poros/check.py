"""Whether a model can be trained, what is proved of it and how large it is, without torch.

Reads config.json and the headers of the safetensors files, no weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poros import experts
from poros.arch_registry import (
    CERTIFIED,
    USER_ASSERTED,
    VARIABLE,
    Labels,
    architectures,
    find_architecture,
    labels,
)
from poros.arch_table import ArchSpec, Wrapper
from poros.certified import Stack, certified_cells, this_stack
from poros.check_memory import sizes_of
from poros.check_sizes import Sizes, find_layers, is_head, layer_of, mismatches, sizes
from poros.errors import PorosArchNotValidatedError, PorosError, PorosHubError, PorosModelError
from poros.memory_sizes import ModelSizes
from poros.model_config import check_config, is_prequantised, read_config, text_config, text_name
from poros.weights_index import TensorHeader, read_index, short_list

UNKNOWN = "unknown"
"""The label of a family that is neither in the table nor registered."""

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass
class Report:
    """What was found out about a model.

    Attributes:
        model: As the user named it.
        folder: Where its files are.
        model_type: Of the text model.
        whole: The multimodal type that it is a part of; empty: it is all of the model.
        labels: The three words, for NF4 on this machine.
        why: The reason for the first word.
        stack: This machine.
        notes: What the table says of the family.
        prequantised: Whether its files are NF4 already.
        sizes: None where the headers can't be read or have no layers.
        memory: What a plan is made from; None where it can't be told.
        left_out_bytes: Stored tensors that are not used, and their sizes.
        refusals: Why it can't be trained, the first one first; empty: it can.
    """

    model: str
    folder: Path
    model_type: str
    whole: str
    labels: Labels
    why: str
    stack: Stack
    notes: str = ""
    prequantised: bool = False
    sizes: Sizes | None = None
    memory: ModelSizes | None = None
    left_out_bytes: dict[str, int] = field(default_factory=dict)
    refusals: list[PorosError] = field(default_factory=list)


def check_model(model: str, *, rank: int = 16) -> Report:
    """Look at a folder, or at a model of the Hub that is in its cache.

    Args:
        model: The folder, or the name.
        rank: Of the adapter that memory is counted for.

    Raises:
        PorosModelError: There is no readable config.json.
        PorosHubError: It is no folder, and not in the Hub's cache.
    """
    folder = _folder_of(model)
    config = read_config(folder)
    stored, unread = _read_headers(folder)
    refusals: list[PorosError] = []
    text, wrapper = dict(config), None
    try:
        if experts.is_mixture(config):
            raise _mixture(config, model)
        has_head = any(map(is_head, stored)) if stored else None
        text, wrapper = text_config(config, where=model, has_head=has_head)
    except PorosError as error:
        refusals.append(error)
    model_type = str(text.get("model_type"))
    spec = architectures().get(model_type) if not refusals else None
    report = Report(
        model, folder, model_type, wrapper.model_type if wrapper else "", *_labels(spec),
        this_stack(), notes=spec.notes if spec else "", refusals=refusals,
    )  # fmt: skip
    refusals += _refused_configs(report, text, spec)
    if unread is not None:
        refusals.append(unread)
    else:
        _add_headers(report, stored, text, wrapper, spec, rank)
    return report


def _read_headers(folder: Path) -> tuple[dict[str, TensorHeader], PorosError | None]:
    try:
        return {name: tensor.header for name, tensor in read_index(folder).items()}, None
    except PorosError as error:
        return {}, error


def _folder_of(model: str) -> Path:
    folder = Path(model).expanduser()
    if folder.is_file():
        raise PorosModelError(
            "a file, not a model's folder",
            where=model,
            remediation="give the folder that holds config.json and the safetensors files",
        )
    if folder.is_dir() or not _HUB_NAME.fullmatch(model):
        return folder
    snapshots = hub_cache() / f"models--{model.replace('/', '--')}"
    reference = snapshots / "refs" / "main"
    if reference.is_file():
        folder = snapshots / "snapshots" / reference.read_text("utf-8").strip()
        if folder.is_dir():
            return folder
    raise PorosHubError(
        f"no folder {model}, and the Hub's cache has no model of that name ({hub_cache()})",
        where=model,
        remediation=f"give the model's folder, or fetch it: hf download {model}",
    )


def hub_cache() -> Path:
    """Where the Hub's library keeps its files; asking it would take longer than all else."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or default)
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()


def _labels(spec: ArchSpec | None) -> tuple[Labels, str]:
    if spec is None:
        return Labels(UNKNOWN, UNKNOWN, UNKNOWN), "neither in Poros's table nor registered"
    words = labels(spec.model_type, "nf4", this_stack())
    if words.architecture == USER_ASSERTED:
        return words, f"you named it ({VARIABLE}); nothing is claimed to be exact"
    if words.architecture != CERTIFIED:
        return words, "in Poros's table; no committed artifact stands behind it"
    cells = [cell for cell in certified_cells() if cell.model_type == spec.model_type]
    proofs = (
        f"{cell.precision} at {cell.sizes} sizes, {cell.weights} weights"
        f"{''.join(f', but for {what}' for what in cell.exceptions)}, on {cell.stack} "
        f"(docs/validation/{', '.join(cell.artifacts)})"
        for cell in cells
    )
    return words, "; ".join(proofs)


def _mixture(config: Mapping[str, Any], where: str) -> PorosArchNotValidatedError:
    return PorosArchNotValidatedError(
        f"model_type {config.get('model_type')!r} is {experts.REASON}",
        where=where,
        remediation=experts.MEND,
    )


def _refused_configs(
    report: Report, config: Mapping[str, Any], spec: ArchSpec | None
) -> Iterator[PorosError]:
    """What stands in config.json and can't be run."""
    if spec is None and not report.refusals:
        try:
            find_architecture(config.get("model_type"))
        except PorosError as error:
            error.where = report.model
            yield error
    try:
        report.prequantised = is_prequantised(config, where=report.model)
    except PorosError as error:
        yield error
    if spec is not None:
        try:
            check_config(config, spec, where=report.model)
        except PorosError as error:
            yield error


def _add_headers(
    report: Report,
    stored: Mapping[str, TensorHeader],
    config: Mapping[str, Any],
    wrapper: Wrapper | None,
    spec: ArchSpec | None,
    rank: int,
) -> None:
    """Sizes, and what the weights say against the config."""
    try:
        headers = _text_headers(report, stored, wrapper)
    except PorosError as error:
        report.refusals.append(error)
        return
    path = (spec.layers_path if spec else "") or find_layers(headers)
    headers = _renamed(headers, spec, path)
    for name in [n for n in headers if spec and _is_left_out(n, spec, config)]:
        report.left_out_bytes[name] = headers.pop(name).num_bytes
    if any(layer_of(name, path) is not None for name in headers):
        report.sizes = sizes(headers, config, path)
    wrong = mismatches(headers, config, path) if not report.refusals else []
    if spec is not None and not report.refusals and not wrong:
        report.memory = sizes_of(headers, config, path, targets=spec.lora_targets, rank=rank)
    if wrong:
        report.refusals.append(
            PorosModelError(
                f"checkpoint and config disagree: {'; '.join(wrong)}",
                where=report.model,
                remediation="restore the config.json that belongs to these weights, or download "
                "both again" + ("" if report.sizes else ", or correct layers_path in the record"),
            )
        )


def _text_headers(
    report: Report, stored: Mapping[str, TensorHeader], wrapper: Wrapper | None
) -> dict[str, TensorHeader]:
    """The text model's tensors by its own names.

    Raises:
        PorosModelError: A tensor belongs to no known part.
    """
    if wrapper is None:
        return dict(stored)
    headers, lost = {}, []
    for name, header in stored.items():
        own = text_name(name, wrapper)
        if _matches(wrapper.left_out, name):
            report.left_out_bytes[name] = header.num_bytes
        elif own is None:
            lost.append(name)
        else:
            headers[own] = header
    if lost:
        raise PorosModelError(
            f"{short_list(lost)}: of no known part of a {wrapper.model_type} model",
            where=report.model,
            remediation="download the model again; if it is whole, report it",
        )
    return headers


def _renamed(
    headers: dict[str, TensorHeader], spec: ArchSpec | None, path: str
) -> dict[str, TensorHeader]:
    """Names as the model has them, where some version of transformers wrote others."""
    if spec is None or any(name.startswith(f"{path}.") for name in headers):
        return headers
    for old, new in spec.renames:
        headers = {
            new + name[len(old) :] if name.startswith(old) else name: header
            for name, header in headers.items()
        }
    return headers


def _is_left_out(name: str, spec: ArchSpec, config: Mapping[str, Any]) -> bool:
    if not _matches(spec.left_out, name):
        return False
    index = layer_of(name, spec.layers_path)
    if not spec.shared_states or index is None or not name.endswith(".weight"):
        return True
    # Only the last layers take the keys and values of earlier ones.
    num_layers, num_shared = config.get("num_hidden_layers"), config.get("num_kv_shared_layers")
    if not isinstance(num_layers, int) or not isinstance(num_shared, int):
        return False
    return index >= num_layers - num_shared


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
