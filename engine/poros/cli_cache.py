"""`poros cache`: list and remove quantised models that later starts would read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poros.cli_answers import Gigabytes, as_json_option, ask_first, print_json, safe, yes_option
from poros.errors import PorosConfigError, PorosOutputError
from poros.told_sizes import told_size

if TYPE_CHECKING:
    from poros.cache_entries import CacheEntry

_DAY_S = 86400
_folder = click.option(
    "--cache", type=click.Path(path_type=Path), help="A folder that nf4_cache named."
)


@click.group("cache")
def cache() -> None:
    """List and remove quantised models; a run that needs one makes it anew."""


@cache.command("ls")
@_folder
@as_json_option
def ls_command(cache: Path | None, *, as_json: bool) -> int:
    """The entries, the one used longest ago first, and what else the cache holds."""
    from poros.cache_entries import entries, nf4_folder, others

    folder = cache or nf4_folder()
    found, rest = entries(folder), [] if cache else others()
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "entries": _records(found),
                "others": [asdict(other) | {"path": str(other.path)} for other in rest],
                "num_bytes": sum(entry.num_bytes for entry in found),
            }
        )
        return 0
    for entry in found:
        click.echo(_line(entry))
    total = told_size(sum(entry.num_bytes for entry in found))
    click.echo(f"{len(found)} quantised models, {total}, in {safe(str(folder))}")
    for other in rest:
        click.echo(f"{told_size(other.num_bytes):>10}  {other.what}, in {safe(str(other.path))}")
    return 0


@cache.command("rm")
@click.argument("entry", nargs=-1, required=True)
@_folder
@yes_option
@as_json_option
def rm_command(entry: tuple[str, ...], cache: Path | None, *, yes: bool, as_json: bool) -> int:
    """Remove entries, by their folders' names (the beginning is enough) or by the model's."""
    from poros.cache_entries import find_entry, nf4_folder, remove_entry

    found = {e.path: e for e in (find_entry(cache or nf4_folder(), name) for name in entry)}
    ask_first([_named(each) for each in found.values()], yes=yes)
    for each in found.values():
        remove_entry(each)
    _tell(list(found.values()), as_json=as_json, word="removed")
    return 0


@cache.command("prune")
@click.option(
    "--keep",
    "keep_gb",
    type=Gigabytes(or_zero=True),
    metavar="GB",
    help="What may stay, of the entries used last; 0 if --unused-days alone is given.",
)
@click.option(
    "--unused-days",
    type=click.FloatRange(min=0),
    help="Only entries that no run has used for so long.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
@_folder
@yes_option
@as_json_option
def prune_command(
    cache: Path | None,
    *,
    keep_gb: float | None,
    unused_days: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove entries, the one used longest ago first, until at most --keep GB are left.

    An entry that a run is using stays.
    """
    from poros import atomic
    from poros.cache_entries import nf4_folder, remove_entry, to_prune
    from poros.cache_hold import is_in_use

    if keep_gb is None and unused_days is None:
        raise PorosConfigError(
            "nothing says what may stay",
            where="poros cache prune",
            remediation="--keep GB or --unused-days DAYS; --keep 0 removes every entry",
        )
    folder = cache or nf4_folder()
    unused_since_s = None if unused_days is None else time.time() - unused_days * _DAY_S
    going = to_prune(folder, keep_bytes=round((keep_gb or 0) * 1e9), unused_since_s=unused_since_s)
    if dry_run:
        _tell(going, as_json=as_json, word="would remove")
        return 0
    ask_first([_named(each) for each in going], yes=yes)
    atomic.sweep_temps(folder)
    removed = []
    for each in going:
        try:
            remove_entry(each)
        except PorosOutputError:
            if is_in_use(each.path):  # a run began with it meanwhile
                continue
            raise
        removed.append(each)
    _tell(removed, as_json=as_json, word="removed")
    return 0


def _tell(found: Sequence[CacheEntry], *, as_json: bool, word: str) -> None:
    total = sum(entry.num_bytes for entry in found)
    if as_json:
        print_json({word.replace(" ", "_"): _records(found), "num_bytes": total})
        return
    for entry in found:
        click.echo(f"{word} {safe(_named(entry))}")
    click.echo(f"{len(found)} entries, {told_size(total)}")


def _records(found: Sequence[CacheEntry]) -> list[dict[str, Any]]:
    return [asdict(entry) | {"path": str(entry.path)} for entry in found]


def _line(entry: CacheEntry) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_s))
    name = entry.path.name.removeprefix("nf4-")[:8]
    broken = "" if entry.whole else "  (files are missing: it will be made anew)"
    state = f"{'  (in use)' * entry.in_use}{broken}"
    return safe(f"{name:8}  {told_size(entry.num_bytes):>10}  used {used}  {entry.model}{state}")


def _named(entry: CacheEntry) -> str:
    return f"{entry.path.name} ({entry.model}, {told_size(entry.num_bytes)})"
