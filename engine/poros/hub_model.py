"""A model on the Hub, as much of it as can be had without its weights; needs no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from poros.atomic import free_bytes
from poros.errors import (
    PorosError,
    PorosHubError,
    PorosModelError,
    PorosStorageError,
    escape_control,
)
from poros.hub_client import HubClient
from poros.hub_errors import OUTAGES, not_the_hubs, refuse_pickles, unreachable
from poros.hub_names import COMMIT, FETCHED, HubName, hub_cache, parse_model
from poros.model_config import CONFIG_FILE, config_object
from poros.told_sizes import told_size
from poros.weights_index import (
    INDEX_FILE,
    SINGLE_FILE,
    StoredTensor,
    TensorHeader,
    header_length,
    join_shards,
    parse_header,
    weight_map_of,
)

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
TOKENIZER_FILE = "tokenizer_config.json"

_AT_ONCE = 8
_FIRST_BYTES = 256 * 2**10
"""Of a file with weights: most headers of shards are shorter."""


@dataclass(frozen=True, slots=True)
class HubFacts:
    """What the Hub says of a repository.

    Attributes:
        asked: The name that was asked for.
        name: The name it has now.
        commit: Of the revision.
        licence: Its name; empty: none is given.
        gated: ``auto`` or ``manual`` where terms must be accepted; empty: it is open.
        private: Whether it is.
        num_bytes: By file; None where the size isn't told.
    """

    asked: HubName
    name: str
    commit: str
    licence: str = ""
    gated: str = ""
    private: bool = False
    num_bytes: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def download(self) -> list[str]:
        """The files that a run would fetch."""
        return [f for f in self.num_bytes if any(fnmatch(f, pattern) for pattern in FETCHED)]

    @property
    def download_bytes(self) -> int | None:
        """Their bytes; None: not all are told."""
        sizes = [self.num_bytes[file] for file in self.download]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def is_renamed(self) -> bool:
        """Whether the name that was asked for only leads to another."""
        return self.name != self.asked.name


@dataclass(frozen=True, slots=True)
class Fetched:
    """Config and headers of a model on the Hub.

    Attributes:
        facts: Of its repository.
        config: Its config.json, or the few keys of it that the Hub tells of a gated one.
        stored: Its tensors.
        unread: Why there are none.
        refusal: Why none of its files can be read.
        has_template: Whether it has a chat template; None: it can't be told.
    """

    facts: HubFacts
    config: dict[str, Any]
    stored: dict[str, TensorHeader] = field(default_factory=dict)
    unread: PorosError | None = None
    refusal: PorosHubError | None = None
    has_template: bool | None = None


def refuse_large_download(model: str, num_bytes: int) -> None:
    """Refuse to fetch what the disk of the Hub's cache has no room for.

    Args:
        model: The repository's name.
        num_bytes: All that a run needs of it; what is here of it, even in part, is taken off.

    Raises:
        PorosStorageError: There is less room.
    """
    cache = hub_cache()
    there = next((place for place in (cache, *cache.parents) if place.is_dir()), cache)
    free = free_bytes(there)
    blobs = cache / f"models--{model.replace('/', '--')}" / "blobs"
    here = sum(file.stat().st_size for file in blobs.iterdir()) if blobs.is_dir() else 0
    if 0 < free < num_bytes - here:
        raise PorosStorageError(
            f"{told_size(num_bytes - here)} are to be downloaded, {told_size(free)} are free",
            where=escape_control(str(cache)),
            remediation="make room, or set HF_HOME to a folder on a larger disk",
        )


def is_outage(error: PorosError) -> bool:
    """Whether the Hub could not be asked at all, or not now."""
    return error.remediation in OUTAGES


def ask_facts(model: HubName, *, timeout_s: float) -> HubFacts:
    """What the Hub says of a repository.

    Raises:
        PorosHubError: It says no, can't be reached, or something else answers.
    """
    return _facts(HubClient(model, timeout_s=timeout_s).info(), model)[0]


def fetch(model: HubName) -> Fetched:
    """Config and headers of a model, by a few small questions.

    Raises:
        PorosHubError: The Hub says no, can't be reached, or something else answers.
        PorosModelError: It has no safetensors, or no readable config.json.
    """
    record = HubClient(model).info()
    facts, told = _facts(record, model)
    client = HubClient(replace(model, name=facts.name))
    refuse_pickles(facts.name, list(facts.num_bytes))
    where = f"{CONFIG_FILE} of {client.model.where}"
    if CONFIG_FILE not in facts.num_bytes:
        raise PorosModelError(
            f"no {CONFIG_FILE}", where=client.model.where, remediation="take another repository"
        )
    try:
        config = config_object(client.json(facts.commit, CONFIG_FILE), where=where)
    except PorosHubError as error:
        if is_outage(error) or not facts.gated:
            raise
        return Fetched(facts, told, refusal=error)
    try:
        stored, unread = _headers(client, facts), None
    except PorosModelError as error:
        stored, unread = {}, error
    return Fetched(facts, config, stored, unread, has_template=_has_template(client, facts))


def template_in(settings: object) -> bool:
    """Whether a tokenizer's settings hold a chat template."""
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def _facts(record: Mapping[str, Any], asked: HubName) -> tuple[HubFacts, dict[str, Any]]:
    commit, name, gated = (record.get(key) for key in ("sha", "id", "gated"))
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise not_the_hubs("no commit", asked.where, HubClient(asked).endpoint)
    facts = HubFacts(
        asked,
        name if isinstance(name, str) and _is_name(name) else asked.name,
        commit,
        _licence(record),
        gated if isinstance(gated, str) else "manual" if gated is True else "",
        record.get("private") is True,
        dict(_files(record["siblings"])),
    )
    config = record.get("config")
    return facts, config if isinstance(config, dict) else {}


def _is_name(name: str) -> bool:
    try:
        return isinstance(parse_model(f"{name}@main"), HubName)
    except PorosModelError:
        return False


def _licence(record: Mapping[str, Any]) -> str:
    """As the model's card says it, else as its tags do."""
    card, tags = record.get("cardData"), record.get("tags")
    said = card if isinstance(card, dict) else {}
    found = said.get("license")
    if found == "other" and isinstance(said.get("license_name"), str):
        return str(said["license_name"])
    words = found if isinstance(found, list) else [found]
    named = [word for word in words if isinstance(word, str) and word]
    prefix = "license:"
    marks = [tag for tag in tags if isinstance(tag, str)] if isinstance(tags, list) else []
    named = named or [tag[len(prefix) :] for tag in marks if tag.startswith(prefix)]
    return ", ".join(named)


def _files(siblings: Iterable[Any]) -> Iterable[tuple[str, int | None]]:
    for entry in siblings:
        if not isinstance(entry, dict) or not isinstance(entry.get("rfilename"), str):
            continue
        size = entry.get("size")
        if not isinstance(size, int) and isinstance(entry.get("lfs"), dict):
            size = entry["lfs"].get("size")
        yield entry["rfilename"], size if isinstance(size, int) and size >= 0 else None


def _headers(client: HubClient, facts: HubFacts) -> dict[str, TensorHeader]:
    folder = Path(facts.name)
    if INDEX_FILE not in facts.num_bytes:
        if SINGLE_FILE not in facts.num_bytes:
            raise PorosModelError(
                f"no {SINGLE_FILE} and no {INDEX_FILE}",
                where=client.model.where,
                remediation="take another repository",
            )
        return _plain(_header(client, facts, SINGLE_FILE))
    weight_map = weight_map_of(client.json(facts.commit, INDEX_FILE), folder / INDEX_FILE)
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if shard not in facts.num_bytes]:
        raise PorosModelError(
            f"{len(missing)} of {len(shards)} shards are missing: {', '.join(missing)}",
            where=client.model.where,
            remediation="take another revision",
        )
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        headers = pool.map(lambda shard: _header(client, facts, shard), shards)
        by_shard = dict(zip(shards, headers, strict=True))
    return _plain(join_shards(folder, weight_map, by_shard))


def _header(client: HubClient, facts: HubFacts, file: str) -> dict[str, StoredTensor]:
    size_bytes, path = facts.num_bytes[file], Path(facts.name) / file
    if size_bytes is None:
        raise not_the_hubs(f"no size of {file}", client.model.where, client.endpoint)
    head = client.beginning(facts.commit, file, _FIRST_BYTES) if size_bytes else b""
    end = header_length(path, head, size_bytes) + 8
    if end > len(head):
        head = client.beginning(facts.commit, file, end)
    if end > len(head):
        raise unreachable("cut short", client.model.where)
    return parse_header(path, head[8:end], size_bytes)


def _plain(tensors: Mapping[str, StoredTensor]) -> dict[str, TensorHeader]:
    return {name: tensor.header for name, tensor in tensors.items()}


def _has_template(client: HubClient, facts: HubFacts) -> bool | None:
    if any(file in facts.num_bytes for file in TEMPLATE_FILES):
        return True
    if TOKENIZER_FILE not in facts.num_bytes:
        return None
    return template_in(client.json(facts.commit, TOKENIZER_FILE))
