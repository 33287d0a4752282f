"""Where `poros check` finds a model: a folder, the Hub's cache, or the Hub; needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poros.errors import PorosError, PorosHubError
from poros.hub_model import TEMPLATE_FILES, TOKENIZER_FILE, HubFacts, ask_facts, fetch, template_in
from poros.hub_names import HubName, cached_folder, hub_cache, is_offline, parse_model
from poros.model_config import read_config
from poros.weights_index import TensorHeader, read_index

_PATIENCE_S = 3.0
"""For what the Hub says of a model that is here already."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Config and headers of a model.

    Attributes:
        config: Its config.json.
        stored: Its tensors.
        unread: Why there are none.
        refusal: Why none of its files can be read.
        folder: Where its files are; None: on the Hub only.
        facts: What the Hub says; None: it was not asked, or is not asked for a folder.
        note: Why it was not.
        has_template: Whether it has a chat template; None: it can't be told.
    """

    config: dict[str, Any]
    stored: dict[str, TensorHeader] = field(default_factory=dict)
    unread: PorosError | None = None
    refusal: PorosHubError | None = None
    folder: Path | None = None
    facts: HubFacts | None = None
    note: str = ""
    has_template: bool | None = None


def open_model(model: str) -> Opened:
    """Read config and headers of what a user calls a model.

    A copy in the Hub's cache that is whole is taken; the Hub is then asked for facts alone.

    Raises:
        PorosModelError: There is no such folder, no readable config.json, or no safetensors.
        PorosHubError: The Hub says no, can't be reached, or may not be asked.
    """
    found = parse_model(model)
    if isinstance(found, Path):
        return _local(found)
    folder = cached_folder(found)
    if is_offline():
        if folder is None:
            raise _not_here(found)
        return _local(folder, note="the Hub was not asked: HF_HUB_OFFLINE is set")
    if folder is not None and (folder / "config.json").is_file():
        opened = _local(folder)
        if opened.unread is None:
            return _with_facts(opened, found)
    got = fetch(found)
    return Opened(
        got.config, got.stored, got.unread, got.refusal, None, got.facts, "", got.has_template
    )


def _local(folder: Path, *, note: str = "", facts: HubFacts | None = None) -> Opened:
    config = read_config(folder)
    has_template = any((folder / name).is_file() for name in TEMPLATE_FILES)
    if not has_template:
        try:
            settings = json.loads((folder / TOKENIZER_FILE).read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            settings = None
        has_template = template_in(settings)
    try:
        stored = {name: tensor.header for name, tensor in read_index(folder).items()}
    except PorosError as error:
        return Opened(config, {}, error, None, folder, facts, note, has_template)
    return Opened(config, stored, None, None, folder, facts, note, has_template)


def _with_facts(opened: Opened, model: HubName) -> Opened:
    try:
        facts = ask_facts(model, timeout_s=_PATIENCE_S)
    except PorosHubError as error:
        return replace(opened, note=f"the copy in the Hub's cache; {error.message}")
    return replace(opened, facts=facts)


def _not_here(model: HubName) -> PorosHubError:
    return PorosHubError(
        f"HF_HUB_OFFLINE is set and the Hub's cache has no model of that name ({hub_cache()})",
        where=model.where,
        remediation="fetch it once with a network, or give the folder of a copy",
    )
