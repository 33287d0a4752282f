"""Rows of `poros doctor` about installed packages and environment variables; imports none."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from poros.certified import Stack, certified_cells, this_stack
from poros.doctor_rows import Row
from poros.doctor_terminal import terminal_row

Version = Callable[[str], str | None]

_INSTALL = 'pip install --upgrade "poros-tui[train]"'
_EXTRA = re.compile(r"extra\s*==\s*['\"]train['\"]")
_NAMED = re.compile(r"([\w.-]+?)\s*(?:>=\s*([\d.]+).*)?(?:;|$)")


def installed_version(package: str) -> str | None:
    """The version of a package; None: it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def needed_packages(requirements: Collection[str] | None = None) -> dict[str, str]:
    """What training needs, and the oldest version of each, as the distribution declares it."""
    if requirements is None:
        try:
            requirements = metadata.requires("poros-tui") or []
        except metadata.PackageNotFoundError:
            requirements = []
    found = {}
    for line in requirements:
        if _EXTRA.search(line) and (named := _NAMED.match(line)):
            found[named[1]] = named[2] or "0"
    return found or _NEEDED


_NEEDED = {
    "accelerate": "1.1",
    "bitsandbytes": "0.50",
    "datasets": "3",
    "peft": "0.18",
    "safetensors": "0.4.3",
    "torch": "2.10",
    "transformers": "5.5",
}
# For a checkout that is on the path without being installed.


def package_rows(needed: Mapping[str, str], version: Version) -> Iterator[Row]:
    """One row for all packages of training, or one for each that is missing or too old."""
    wrong = 0
    found = {name: version(name) for name in needed}
    missing = [name for name, have in found.items() if have is None]
    if missing:
        yield Row(
            "packages",
            "warn",
            f"not installed: {', '.join(missing)}",
            "training needs them; check, doctor, init and the other commands do not",
            'pip install "poros-tui[train]"',
        )
    for name, oldest in needed.items():
        have = found[name]
        if have is not None and numbers(have) < numbers(oldest):
            wrong += 1
            yield Row(
                f"package_{name}",
                "bad",
                f"{name} {have}",
                f"Poros needs {oldest} or later",
                _INSTALL,
            )
    if not missing and not wrong:
        told = ", ".join(f"{name} {have}" for name, have in found.items())
        yield Row("packages", "ok", told, "all that training needs, new enough")


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version, for comparing: ``2.13.0+cu130`` is (2, 13, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def stack_row(stack: Stack, proved: Collection[Stack]) -> Row:
    """Whether a proof was run with these versions."""
    if not stack.torch:
        return Row(
            "stack",
            "unknown",
            "torch is not installed",
            "versions decide what the proofs hold for",
            'pip install "poros-tui[train]"',
        )
    if stack in proved:
        return Row("stack", "ok", str(stack), "proofs in docs/validation were run on this stack")
    nearest = max(proved, key=lambda other: _likeness(stack, other), default=None)
    return Row(
        "stack",
        "warn",
        str(stack),
        f"no committed proof on this stack{f'; the nearest is {nearest}' if nearest else ''}",
        "poros parity --demo proves it here",
    )


def environment_rows(environ: Mapping[str, str]) -> Iterator[Row]:
    """Variables that make a run fail, fetch again, or compute otherwise."""
    rows = [row for trap in _TRAPS for row in trap(environ)]
    yield from rows
    if not rows:
        yield Row("environment", "ok", "no variable stands in the way", "defaults are used")


def software_rows(environ: Mapping[str, str]) -> Iterator[Row]:
    """All rows of packages and variables."""
    yield from package_rows(needed_packages(), installed_version)
    yield stack_row(this_stack(), {cell.stack for cell in certified_cells()})
    yield from environment_rows(environ)
    yield terminal_row(environ)


def _likeness(stack: Stack, other: Stack) -> int:
    names = ("torch", "transformers", "bitsandbytes", "compute_capability")
    return sum(getattr(stack, name) == getattr(other, name) for name in names)


def _hub_traps(environ: Mapping[str, str]) -> Iterator[Row]:
    for name in ("HF_HOME", "HF_HUB_CACHE"):
        value = environ.get(name)
        if value is None:
            continue
        place = Path(value).expanduser()
        if not value:
            yield Row(
                f"env_{name}",
                "warn",
                f"{name} is empty",
                "libraries disagree on what that means",
                f"unset {name}",
            )
        elif not place.is_absolute():
            yield Row(
                f"env_{name}",
                "warn",
                f"{name}={value} is relative",
                "models are fetched again in each working folder",
                f"export {name}={place.absolute()}",
            )
        elif "~" in value and not value.startswith("~"):
            yield Row(
                f"env_{name}",
                "warn",
                f"{name}={value} holds a ~ that no shell replaced",
                "a folder of that name is made",
                f"export {name}=$HOME/...",
            )
    home, hub = environ.get("HF_HOME"), environ.get("HF_HUB_CACHE")
    if home and hub and Path(hub).expanduser() != Path(home).expanduser() / "hub":
        yield Row(
            "env_two_caches",
            "warn",
            f"HF_HUB_CACHE={hub} lies outside of HF_HOME={home}",
            "models lie in the first, logins and data sets in the second",
            "unset HF_HUB_CACHE, unless that is meant",
        )
    if environ.get("TRANSFORMERS_CACHE"):
        yield Row(
            "env_TRANSFORMERS_CACHE",
            "warn",
            "TRANSFORMERS_CACHE is set",
            "transformers 5 no longer reads it: models are fetched to the default place",
            "unset TRANSFORMERS_CACHE; export HF_HUB_CACHE= that folder",
        )


def _offline_traps(environ: Mapping[str, str]) -> Iterator[Row]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        if environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            yield Row(
                f"env_{name}",
                "warn",
                f"{name}={environ[name]}",
                "nothing is fetched; only what is in the cache can be used",
                f"unset {name}, to fetch models",
            )


def _device_traps(environ: Mapping[str, str]) -> Iterator[Row]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        yield Row(
            "env_CUDA_VISIBLE_DEVICES",
            "warn",
            f"CUDA_VISIBLE_DEVICES={visible!r} hides all cards",
            "training runs on the CPU",
            "unset CUDA_VISIBLE_DEVICES",
        )
    if environ.get("CUDA_LAUNCH_BLOCKING") == "1":
        yield Row(
            "env_CUDA_LAUNCH_BLOCKING",
            "warn",
            "CUDA_LAUNCH_BLOCKING=1",
            "no copy runs beside the arithmetic: streaming is many times slower",
            "unset CUDA_LAUNCH_BLOCKING",
        )
    workspace = environ.get("CUBLAS_WORKSPACE_CONFIG")
    if workspace not in (None, ":4096:8"):
        yield Row(
            "env_CUBLAS_WORKSPACE_CONFIG",
            "warn",
            f"CUBLAS_WORKSPACE_CONFIG={workspace}",
            "commands of Poros set :4096:8; scripts of your own would compute other bits",
            "unset CUBLAS_WORKSPACE_CONFIG",
        )


def _loader_traps(environ: Mapping[str, str]) -> Iterator[Row]:
    libraries = environ.get("LD_LIBRARY_PATH", "")
    if re.search(r"cuda|nvidia", libraries, re.IGNORECASE):
        yield Row(
            "env_LD_LIBRARY_PATH",
            "warn",
            f"LD_LIBRARY_PATH={libraries}",
            "CUDA libraries there are loaded before the ones that torch brings",
            "unset LD_LIBRARY_PATH, unless torch needs it",
        )
    if environ.get("PYTHONPATH") and not environ.get("VIRTUAL_ENV"):
        yield Row(
            "env_PYTHONPATH",
            "ok",
            f"PYTHONPATH={environ['PYTHONPATH']}",
            "modules there hide installed ones of the same name",
        )


_TRAPS = (_hub_traps, _offline_traps, _device_traps, _loader_traps)
