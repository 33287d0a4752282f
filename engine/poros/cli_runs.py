"""`poros runs`: list, show, compare and remove runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from poros.cli_answers import as_json_option, ask_first, print_json, safe, yes_option
from poros.told_sizes import told_size

if TYPE_CHECKING:
    from poros.runs import Run

_FOLDER = click.Path(path_type=Path)


@click.group("runs")
def runs() -> None:
    """List, show, compare and remove runs."""


@runs.command("list")
@click.argument("folders", nargs=-1, type=_FOLDER)
@as_json_option
def list_command(folders: tuple[Path, ...], *, as_json: bool) -> int:
    """The runs that were started here, and those in FOLDERS (this folder, if none is given)."""
    from poros.runs import list_runs

    found = list_runs(folders or (Path(),))
    if as_json:
        print_json([summary(run) for run in found])
        return 0
    if not found:
        click.echo("No runs yet. `poros demo` makes one, `poros train FILE` too.")
    for run in found:
        click.echo(_line(run))
    return 0


@runs.command("show")
@click.argument("run")
@as_json_option
def show_command(run: str, *, as_json: bool) -> int:
    """What RUN (its folder, or the beginning of its number) was, did and ended with."""
    from poros.runs import find_run, look_at, settings_of

    found = look_at(find_run(run))
    record = summary(found)
    if as_json:
        losses = {"losses": found.story.losses, "eval_losses": found.story.eval_losses}
        print_json({**record, **losses, "settings": settings_of(found)})
        return 0
    for name, value in record.items():
        if value not in (None, "", {}) and (value or not name.endswith("_bytes")):
            click.echo(f"{name:>18}  {_told(name, value)}")
    return 0


@runs.command("compare")
@click.argument("run", nargs=-1, required=True)
@as_json_option
def compare_command(run: tuple[str, ...], *, as_json: bool) -> int:
    """What differs between two or more runs: settings, results, losses step by step."""
    from poros.errors import PorosConfigError
    from poros.runs import compare, find_run, look_at

    if len(run) < 2:
        raise PorosConfigError("one run alone", remediation="name two or more: runs compare A B")
    record = compare([look_at(find_run(name)) for name in run])
    if as_json:
        print_json(record)
        return 0
    _print_table("run", record["runs"])
    for name, values in {**record["settings"], **record["results"]}.items():
        _print_table(name, [_told(name, value) for value in values])
    last = record["same_losses_until_step"]
    click.echo(f"the very same losses {f'up to step {last}' if last else 'at no step'}")
    return 0


@runs.command("rm")
@click.argument("run", nargs=-1)
@click.option("--gone", is_flag=True, help="Forget all runs whose folders are gone.")
@yes_option
@as_json_option
def rm_command(run: tuple[str, ...], *, gone: bool, yes: bool, as_json: bool) -> int:
    """Remove the folders of runs: checkpoints, adapter, events. A run at work is refused."""
    from poros.errors import PorosConfigError
    from poros.runs import GONE, find_run, list_runs, look_at, refuse_running, remove_run

    if not run and not gone:
        raise PorosConfigError("no run is named", remediation="poros runs rm RUN, or --gone")
    chosen = [look_at(find_run(name)) for name in run]
    for each in chosen:
        refuse_running(each)
    ask_first(
        [f"{each.path} ({told_size(each.num_bytes)})" for each in chosen if each.state != GONE],
        yes=yes,
    )
    if gone:
        chosen += [each for each in list_runs() if each.state == GONE]
    removed = []
    for each in {each.path: each for each in chosen}.values():
        left = remove_run(each)
        removed.append({"path": str(each.path), "num_bytes": each.num_bytes, "left": left})
        if not as_json:
            kept = f"; kept what is no run's: {', '.join(left)}" if left else ""
            click.echo(f"removed {safe(str(each.path))}{safe(kept)}")
    if as_json:
        print_json(removed)
    return 0


def summary(run: Run) -> dict[str, Any]:
    """A run in plain values."""
    from poros.runs import results

    story = run.story
    return {
        "run_id": run.known.run_id,
        "path": str(run.path),
        "moved_from": str(run.known.moved_from) if run.known.moved_from else None,
        "model": run.identity.get("model"),
        "dataset": run.identity.get("dataset"),
        "device": story.device,
        "started_s": story.started_s or None,
        "last_s": story.last_s or None,
        "total_steps": story.total_steps,
        **results(run),
        "warnings": story.num_warnings,
        "resumed": story.num_resumes,
        "message": story.message,
        "adapter": story.adapter,
        "num_bytes": run.num_bytes,
        "versions": story.versions,
    }


def _line(run: Run) -> str:
    story = run.story
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(story.last_s)) if story.last_s else "-"
    loss = "-" if story.final_loss is None else f"{story.final_loss:.4f}"
    steps = f"{story.step}/{story.total_steps}"
    moved = f" (moved from {run.known.moved_from})" if run.known.moved_from else ""
    model = str(run.identity.get("model") or "-")
    return safe(
        f"{run.known.run_id[:8]:8}  {run.state:<8}  {when:<16}  {steps:>11}  loss {loss:<8}"
        f"  {told_size(run.num_bytes):>9}  {model}  {run.path}{moved}"
    )


def _told(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return told_size(value)
    if name in ("started_s", "last_s") and isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    if name.endswith("loss") and isinstance(value, float):
        return f"{value:.6f}"
    if isinstance(value, dict):
        return safe(", ".join(f"{key} {each}" for key, each in value.items()))
    return safe("-" if value is None else str(value))


def _print_table(name: str, values: Sequence[object]) -> None:
    click.echo(f"{name:>28}  " + "  ".join(f"{safe(str(value)):<24}" for value in values).rstrip())
