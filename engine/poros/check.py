"""Whether a model can be trained, what is proved of it and how large it is, without torch.

Reads config.json and the headers of the safetensors files, no weights, wherever they are.
"""

from __future__ import annotations

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
from poros.check_memory import TextHeaders
from poros.check_sizes import Sizes, find_layers, is_head, layer_of, mismatches, sizes
from poros.check_source import open_model
from poros.errors import PorosArchNotValidatedError, PorosError, PorosModelError
from poros.hub_model import HubFacts
from poros.memory_sizes import ModelSizes
from poros.model_config import check_config, is_prequantised, text_config, text_name
from poros.weights_index import TensorHeader, short_list

UNKNOWN = "unknown"
"""The label of a family that is neither in the table nor registered."""


@dataclass
class Report:
    """What was found out about a model.

    Attributes:
        model: As the user named it.
        folder: Where its files are; None: on the Hub only.
        model_type: Of the text model.
        whole: The multimodal type that it is a part of; empty: it is all of the model.
        labels: The three words, for NF4 on this machine.
        why: The reason for the first word.
        stack: This machine.
        notes: What the table says of the family.
        facts: What the Hub says of it; None for a folder, or where it could not be asked.
        note: Why it was not asked.
        has_template: Whether it has a chat template; None: it can't be told.
        prequantised: Whether its files are NF4 already.
        sizes: None where the headers can't be read or have no layers.
        memory: What a plan is made from; None where it can't be told.
        text: The headers that it was made from, for other adapters on the same model.
        left_out_bytes: Stored tensors that are not used, and their sizes.
        refusals: Why it can't be trained, the first one first; empty: it can.
    """

    model: str
    folder: Path | None
    model_type: str
    whole: str
    labels: Labels
    why: str
    stack: Stack
    notes: str = ""
    facts: HubFacts | None = None
    note: str = ""
    has_template: bool | None = None
    prequantised: bool = False
    sizes: Sizes | None = None
    memory: ModelSizes | None = None
    text: TextHeaders | None = None
    left_out_bytes: dict[str, int] = field(default_factory=dict)
    refusals: list[PorosError] = field(default_factory=list)


def check_model(model: str, *, rank: int = 16) -> Report:
    """Look at a folder, or at a model of the Hub.

    Args:
        model: The folder, the name, or the address of its page.
        rank: Of the adapter that memory is counted for.

    Raises:
        PorosModelError: There is no such folder, no readable config.json, or no safetensors.
        PorosHubError: The Hub says no, can't be reached, or may not be asked.
    """
    opened = open_model(model)
    config, stored = opened.config, opened.stored
    refusals: list[PorosError] = []
    text, wrapper = dict(config), None
    if opened.refusal is not None:
        refusals.append(opened.refusal)
    try:
        if experts.is_mixture(config):
            raise _mixture(config, model)
        has_head = any(map(is_head, stored)) if stored else None
        text, wrapper = text_config(config, where=model, has_head=has_head)
    except PorosError as error:
        refusals.append(error)
    model_type = str(text.get("model_type"))
    known = architectures().get(model_type)
    spec = known if refusals == [opened.refusal] * len(refusals) else None
    report = Report(
        model, opened.folder, model_type, wrapper.model_type if wrapper else "", *_labels(spec),
        this_stack(), notes=spec.notes if spec else "", facts=opened.facts, note=opened.note,
        has_template=opened.has_template, refusals=refusals,
    )  # fmt: skip
    if opened.refusal is not None:
        return report
    refusals += _refused_configs(report, text, spec)
    if opened.unread is not None:
        refusals.append(opened.unread)
    else:
        _add_headers(report, stored, text, wrapper, spec, rank)
    return report


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
        report.text = TextHeaders(headers, config, path, tuple(spec.lora_targets))
        report.memory = report.text.sizes(rank=rank)
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
