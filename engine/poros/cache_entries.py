"""What lies in the user's cache: quantised models and the rest, listed and removed; torch-free."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros import atomic
from poros.cache_hold import alone, is_in_use
from poros.errors import PorosConfigError, PorosOutputError, escape_control
from poros.os_errors import refused
from poros.user_cache import user_cache

MANIFEST = "poros_cache.json"
STAMPS = "poros_verified.json"

_KINDS = {
    "models": "models of the demo",
    "plans": "what runs took, for the next plan",
    "answers": "answers of base models to sample prompts",
    "logs": "crash reports",
}


@dataclass(frozen=True)
class CacheEntry:
    """One quantised model.

    Attributes:
        path: Its folder.
        model: As the run named it.
        num_bytes: On disk.
        used_s: When it was used last, seconds since the epoch.
        whole: Whether its manifest and all files that it names are there.
        in_use: Whether a run has it now.
    """

    path: Path
    model: str
    num_bytes: int
    used_s: float
    whole: bool = True
    in_use: bool = False


@dataclass(frozen=True)
class Other:
    """A folder of the cache that holds no quantised models."""

    path: Path
    what: str
    num_bytes: int


def nf4_folder() -> Path:
    """Where ``nf4_cache: auto`` keeps its entries."""
    return user_cache() / "nf4"


def entries(cache: Path) -> list[CacheEntry]:
    """All entries, the one used longest ago first."""
    found = []
    for path in sorted(cache.glob("nf4-*")) if cache.is_dir() else []:
        manifest = read_json(path / MANIFEST)
        stamps = path / STAMPS
        try:
            used_s = (stamps if stamps.exists() else path).stat().st_mtime
            num_bytes = atomic.size_of(path)
        except OSError:
            continue  # somebody removed it just now
        model = str(manifest.get("model", "?"))
        whole, in_use = _is_whole(path, manifest), is_in_use(path)
        found.append(CacheEntry(path, model, num_bytes, used_s, whole, in_use))
    return sorted(found, key=lambda entry: entry.used_s)


def others() -> list[Other]:
    """What else lies in the user's cache."""
    root = user_cache()
    return [
        Other(root / name, what, atomic.size_of(root / name))
        for name, what in _KINDS.items()
        if (root / name).is_dir()
    ]


def to_prune(
    cache: Path, *, keep_bytes: int = 0, unused_since_s: float | None = None
) -> list[CacheEntry]:
    """The entries that have to go, the one used longest ago first; those in use stay.

    Args:
        cache: Their folder.
        keep_bytes: What may stay.
        unused_since_s: Only entries that were not used since; None: all.
    """
    left = entries(cache)
    total = sum(entry.num_bytes for entry in left)
    going = []
    for entry in left:
        if total <= keep_bytes:
            break
        if unused_since_s is not None and entry.used_s >= unused_since_s:
            break
        if not entry.in_use:
            going.append(entry)
            total -= entry.num_bytes
    return going


def remove_entry(entry: CacheEntry) -> None:
    """Remove an entry; one that is gone already is fine.

    Raises:
        PorosOutputError: A run has it, or the system refuses.
    """
    with alone(entry.path) as free:
        if not free:
            raise PorosOutputError(
                "a run is using the entry",
                where=escape_control(str(entry.path)),
                remediation="wait for the run's end, or stop it first",
            )
        try:
            atomic.remove_dir(entry.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(
                PorosOutputError,
                "can't be removed",
                error,
                where=entry.path,
                remediation="mend the rights of its folder",
            ) from error


def find_entry(cache: Path, name: str) -> CacheEntry:
    """The entry of a name: its folder's, the beginning of it, or the model's if it has one only.

    Raises:
        PorosConfigError: None, or several.
    """
    found = entries(cache)
    exact = [entry for entry in found if name in (entry.path.name, str(entry.path))]
    begins = [entry for entry in found if _begins(entry, name)]
    matches = exact or begins or [entry for entry in found if entry.model == name]
    if len(matches) == 1:
        return matches[0]
    several = ", ".join(entry.path.name for entry in matches)
    what = f"{len(matches)} entries are meant ({several}) by" if matches else "no entry is called"
    raise PorosConfigError(
        f"{what} {escape_control(name)}", remediation="poros cache ls names them"
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a file; empty where there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _begins(entry: CacheEntry, name: str) -> bool:
    digest = entry.path.name.removeprefix("nf4-")
    return len(name) >= 4 and digest.startswith(name.removeprefix("nf4-"))


def _is_whole(path: Path, manifest: dict[str, Any]) -> bool:
    files = manifest.get("files")
    return isinstance(files, dict) and bool(files) and all((path / name).exists() for name in files)
