"""A model's name becomes a folder: a local one, or a snapshot of a Hub repository.

Only config, tokenizer and safetensors are fetched, from one commit. Every way in which this can
fail ends in one line that says what to do, and no line holds a token or a server's own text.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import tqdm as hub_tqdm

from poros import atomic
from poros.adapter_files import AdapterFolder
from poros.errors import PorosError, PorosHubError, PorosModelError, escape_control
from poros.events import Event, PhaseFinished, PhaseProgressed, PhaseStarted, Warned
from poros.hub_errors import (
    GATED,
    NO_REPOSITORY,
    NO_REVISION,
    OUTAGES,
    kind_of,
    not_the_hubs,
    refusal,
    refuse_pickles,
    unreachable,
)
from poros.hub_model import refuse_large_download
from poros.hub_names import FETCHED, parse_model
from poros.loading.file_hashes import file_hashes, is_blob

NO_WEIGHTS = tuple(pattern for pattern in FETCHED if "safetensors" not in pattern)
"""What of a repository tells of tokenizer and config alone."""

_PROGRESS_EVERY_S = 0.5
# The HTTP client's own errors (a broken connection, a timeout) share this base; which client it
# is depends on huggingface_hub's version.
TRANSPORT_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]

Emit = Callable[[Event], None]


def resolve_model(
    name_or_path: str,
    emit: Emit,
    *,
    revision: str | None = None,
    patterns: Sequence[str] = FETCHED,
) -> Path:
    """The folder with the model's files.

    Args:
        name_or_path: A local folder, or a Hub name, which may end in ``@revision``.
        emit: Takes the events of a download.
        revision: Branch, tag or commit; the default branch if left out.
        patterns: Which of the repository's files are wanted.

    Raises:
        PorosModelError: A path that is no folder, or a repository without safetensors.
        PorosHubError: The Hub or the network said no.
    """
    found = parse_model(name_or_path)
    if isinstance(found, Path):
        return found
    return _fetch(found.name, revision or found.revision or None, emit, patterns)


@contextlib.contextmanager
def base_of(adapter: AdapterFolder, given: str | None) -> Iterator[str]:
    """The name of an adapter's base; if it is not to be had, the option for another one is told.

    Args:
        adapter: Names its base.
        given: What the user says it is; None: what the adapter says.

    Raises:
        PorosConfigError: Neither says.
        PorosModelError: There is no such folder.
        PorosHubError: As the block has it.
    """
    named = adapter.base(given)
    try:
        parse_model(named)
        yield named
    except PorosHubError as error:
        raise _other_base(error, adapter, given) from error
    except PorosModelError as error:
        if not error.where.startswith("model "):  # only what is said of the name
            raise
        raise _other_base(error, adapter, given) from error


def _other_base(error: PorosError, adapter: AdapterFolder, given: str | None) -> PorosError:
    whose = "" if given else f", which {escape_control(str(adapter.path))} names as its base"
    return type(error)(
        error.message,
        where=error.where + whose,
        remediation=f"{error.remediation}; --base FOLDER says where the base lies",
    )


def _fetch(name: str, revision: str | None, emit: Emit, patterns: Sequence[str]) -> Path:
    if constants.HF_HUB_OFFLINE:
        return _cached(name, revision, "HF_HUB_OFFLINE is set")
    try:
        with _hub_errors(name, revision):
            info = HfApi().model_info(name, revision=revision, files_metadata=True)
            sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or []}
    except PorosHubError as error:
        if error.remediation not in OUTAGES:
            raise
        return _cached_after(error, name, revision, emit)
    refuse_pickles(name, list(sizes))
    wanted = [file for file in sizes if any(fnmatch(file, pattern) for pattern in patterns)]
    refuse_large_download(name, sum(sizes[file] for file in wanted))
    started_s = time.monotonic()
    emit(PhaseStarted(phase="download"))
    before = _blobs(name)
    with _hub_errors(name, revision, fetching=True):
        # It resolves the revision to a commit once, so all files are of that commit; given the
        # commit itself it would not note the branch, and offline mode would not find the copy.
        folder = snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), tqdm_class=_progress_bar(emit)
        )
        _verify(Path(folder), before, name)
    emit(PhaseFinished(phase="download", duration_s=time.monotonic() - started_s))
    return Path(folder)


def _blobs(name: str) -> set[str]:
    """What is in the cache of a repository, by the names of its blobs."""
    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "blobs"
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _verify(folder: Path, before: Collection[str], name: str) -> None:
    """Hash what has just arrived: the library looks at sizes alone, and later starts trust names.

    Raises:
        PorosModelError: A file is not the one that the Hub has; it is removed.
    """
    links = {path: path.resolve() for path in folder.rglob("*") if path.is_symlink()}
    fresh = {blob for blob in links.values() if blob.name not in before and is_blob(blob)}
    hashes = file_hashes(fresh, trust_names=False)
    damaged = [link for link, blob in links.items() if hashes.get(blob, blob.name) != blob.name]
    for link in damaged:
        links[link].unlink(missing_ok=True)
        link.unlink(missing_ok=True)
    if damaged:
        files = ", ".join(sorted(str(link.relative_to(folder)) for link in damaged))
        raise PorosModelError(
            f"{files}: arrived damaged, its sha256 is not the Hub's",
            where=f"model {name}",
            remediation="run again: it is removed, and fetched anew",
        )


def _cached(name: str, revision: str | None, reason: str) -> Path:
    with _hub_errors(name, revision, offline_reason=reason):
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=list(FETCHED), local_files_only=True
            )
        )


def _cached_after(outage: PorosHubError, name: str, revision: str | None, emit: Emit) -> Path:
    try:
        folder = _cached(name, revision, "no network")
    except PorosHubError:
        raise outage from None
    message = f"{outage.message}; using the copy fetched before, commit {folder.name}"
    emit(Warned(code="hub-unreachable", message=message))
    return folder


@contextlib.contextmanager
def _hub_errors(
    name: str, revision: str | None, *, offline_reason: str = "", fetching: bool = False
) -> Iterator[None]:
    where = f"model {name}" + (f" at revision {revision}" if revision else "")
    try:
        yield
    except PorosError:
        raise
    except HfHubHTTPError as error:
        raise _refusal(error, name, revision) from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise _not_cached(error, where, offline_reason, fetching=fetching) from None
    except (TRANSPORT_ERROR, OSError) as error:
        raise _broken(error, where, fetching=fetching) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise not_the_hubs(type(error).__name__, where, constants.ENDPOINT) from None


def _refusal(error: HfHubHTTPError, name: str, revision: str | None) -> PorosHubError:
    status = error.response.status_code if error.response is not None else 0
    kinds = {
        GatedRepoError: GATED,
        RevisionNotFoundError: NO_REVISION,
        RepositoryNotFoundError: NO_REPOSITORY,
    }
    code = next((code for kind, code in kinds.items() if isinstance(error, kind)), "")
    return refusal(status, code, name, revision, constants.ENDPOINT)


def _not_cached(error: Exception, where: str, offline_reason: str, *, fetching: bool) -> PorosError:
    if not offline_reason:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        return _broken(cause, where, fetching=fetching)
    return PorosHubError(
        f"{offline_reason} and the model is not, or not wholly, in the Hub's cache "
        f"({constants.HF_HUB_CACHE})",
        where=where,
        remediation="fetch it once with a network, or give the folder of a copy",
    )


def _broken(error: Exception, where: str, *, fetching: bool) -> PorosError:
    storage = atomic.storage_error(error, Path(constants.HF_HUB_CACHE) / "x")
    if storage is not None:
        return storage
    return unreachable(kind_of(error), where, fetching=fetching)


class _Nowhere:
    """Where the bars of the Hub's library are drawn; its progress goes into events."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _progress_bar(emit: Emit) -> type[Any]:
    """A bar class that emits bytes done instead of drawing."""
    lock = threading.Lock()
    last_s = [0.0]

    class Bar(hub_tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            silent: dict[str, Any] = kwargs | {"file": _Nowhere()}
            super().__init__(*args, **silent)  # type: ignore[no-untyped-call]  # the Hub's

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            with lock:
                due = time.monotonic() - last_s[0] >= _PROGRESS_EVERY_S
                if due and getattr(self, "unit", "") == "B":
                    last_s[0] = time.monotonic()
                    done, total = int(self.n), int(self.total or 0)
                    emit(PhaseProgressed(phase="download", done=done, total=total, unit="bytes"))
            return shown

    return Bar
