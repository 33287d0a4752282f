"""What a user may call a model: a folder, a name on the Hub, or its address there; needs no torch.

Also where the Hub's library keeps its files, its address and its token, without importing it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from poros.errors import PorosHubError, PorosModelError
from poros.home_paths import typed_path

FETCHED = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template*", "*.tiktoken",
)  # fmt: skip
"""The files of a repository that a run needs."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[\w.-]+(/[\w.-]+)*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
_FILE_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".json", ".yaml", ".yml")
_PUBLIC = "https://huggingface.co"
_TOKEN = re.compile(r"[\x21-\x7e]+")
_YES = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository and one of its revisions; empty: the default branch."""

    name: str
    revision: str = ""

    @property
    def where(self) -> str:
        """For errors."""
        return f"model {self.name}" + (f" at revision {self.revision}" if self.revision else "")


def parse_model(model: str) -> Path | HubName:
    """The folder that is meant, or the name.

    Args:
        model: A folder, a name which may end in ``@revision``, or the address of its page.

    Raises:
        PorosModelError: It is neither, or a folder that isn't there.
    """
    path = typed_path(model)
    if model and path.is_dir():
        return path
    if model.startswith(("https://", "http://")):
        return _of_address(model)
    _refuse_path(model, path)
    name, _, revision = model.partition("@")
    return _named(name, revision, model)


def _named(name: str, revision: str, said: str) -> HubName:
    wrong = not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name
    if wrong or (revision and (not _REVISION.fullmatch(revision) or ".." in revision)):
        raise PorosModelError(
            "neither a folder here nor a name on the Hub",
            where=f"model {said!r}",
            remediation="give a folder, or a name such as Qwen/Qwen2.5-7B-Instruct",
        )
    return HubName(name, revision)


def _of_address(address: str) -> HubName:
    """``https://huggingface.co/NAME``, perhaps with ``/tree/REVISION``."""
    host = _host_of(address)
    hosts = (urlsplit(_PUBLIC).hostname, "hf.co", "www.huggingface.co")
    if host is None or host not in (*hosts, _host_of(endpoint())):
        # Of the address only the host is told: it may hold a password.
        raise PorosModelError(
            f"not an address of the Hub ({host or 'no host'})",
            where="model",
            remediation=f"give a folder, a name, or {endpoint()}/NAME",
        )
    parts = urlsplit(address)
    words = [unquote(word) for word in parts.path.strip("/").split("/")]
    name, rest = "/".join(words[:2]), words[2:]
    if len(words) > 1 and words[1] in ("tree", "blob", "resolve"):
        name, rest = words[0], words[1:]
    revision = "/".join(rest[1:]) if rest[:1] == ["tree"] else "".join(rest[1:2])
    return _named(name, revision, f"{endpoint()}{parts.path}")


def _host_of(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _refuse_path(model: str, path: Path) -> None:
    first = model.split("/")[0]
    looks_local = (
        model.startswith(("/", ".", "~"))
        or model.endswith(("/", *_FILE_SUFFIXES))
        or "\\" in model
        or model.partition("@")[0].count("/") > 1
        or ("/" in model and Path(first).is_dir())
    )
    if path.is_file():
        raise PorosModelError(
            "a file, not a folder",
            where=f"model {model}",
            remediation="give the folder that holds config.json and the safetensors files",
        )
    if looks_local:
        raise PorosModelError(
            "no such folder",
            where=f"model {model}",
            remediation="check the path; a name on the Hub looks like Qwen/Qwen2.5-7B-Instruct",
        )


def endpoint() -> str:
    """The Hub's address."""
    return (os.environ.get("HF_ENDPOINT") or _PUBLIC).rstrip("/")


def checked_endpoint() -> str:
    """The Hub's address, which is one.

    Raises:
        PorosHubError: It isn't.
    """
    address = endpoint()
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise PorosHubError(
            f"no web address: {address!r}",
            where="HF_ENDPOINT",
            remediation=f"set it to one such as {_PUBLIC}, or unset it",
        )
    return address


def is_offline() -> bool:
    """Whether nobody may be asked."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in _YES for name in names)


def token() -> str:
    """The user's token, as the Hub's library finds it; empty: none. It goes into no message.

    Raises:
        PorosHubError: It can't be one.
    """
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _YES:
        return ""
    found = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    place = Path(os.environ.get("HF_TOKEN_PATH") or _hub_home() / "token").expanduser()
    if not found:
        try:
            found = place.read_text("utf-8")
        except (OSError, ValueError):
            return ""
    found = found.strip()
    if found and not _TOKEN.fullmatch(found):
        raise PorosHubError(
            "the Hub's token holds characters that no token has",
            where=f"HF_TOKEN, or {place}",
            remediation="run `hf auth login` again, or set HF_TOKEN",
        )
    return found


def _hub_home() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HOME") or default)


def hub_cache() -> Path:
    """Where the Hub's library keeps its files; asking it would take longer than all else."""
    return Path(os.environ.get("HF_HUB_CACHE") or _hub_home() / "hub").expanduser()


def cached_folder(model: HubName) -> Path | None:
    """The copy of a revision that was fetched before, wholly or in part; None: there is none."""
    repository = hub_cache() / f"models--{model.name.replace('/', '--')}"
    revision = model.revision or "main"
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (repository / "refs" / revision).read_text("utf-8").strip()
        except (OSError, ValueError):
            return None
    folder = repository / "snapshots" / commit
    return folder if commit and folder.is_dir() else None
