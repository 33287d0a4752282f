"""`poros leaderboard`: stock and streamed runs side by side, from artifacts of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poros.cli_answers import print_json, safe

if TYPE_CHECKING:
    from poros.leaderboard_row import Row

_LEGEND = """\
equal: so many tensors of the run have the stock run's bytes; uncompared: a run by itself.
card: the whole process on it. Figures are the highest of an artifact's cells. GB are 1e9 bytes."""
_SHIPPED = "Shipped runs: random weights in the models' real shapes; commands in docs/validation."
_TITLES = ("peak GB", "reserved", "card GB", "cap GB", "host GB", "s/step", "tokens/s")
_WIDTHS = (8, 9, 8, 7, 8, 7, 9)


def leaderboard(folders: Sequence[Path], *, shipped: bool, model: str | None, as_json: bool) -> int:
    """Print the methods by setting, the least device memory first.

    Args:
        folders: Of artifacts; none: those that ship with Poros.
        shipped: Those too.
        model: Only models whose names have this in them.
        as_json: For scripts.

    Raises:
        PorosError: A folder has no artifact.
    """
    from poros.leaderboard import as_record, grouped, local_rows, shipped_rows

    rows, remarks = local_rows(folders)
    if shipped or not folders:
        rows = [*shipped_rows(), *rows]
    rows = [row for row in rows if model is None or model.lower() in row.model.lower()]
    groups = grouped(rows)
    for remark in remarks:
        click.echo(f"left out: {safe(remark)}", err=True)
    if as_json:
        print_json([as_record(row) for group in groups for row in group])
        return 0
    if not groups:
        click.echo("Nothing to compare.")
    for group in groups:
        _print_group(group)
    if groups:
        click.echo(_LEGEND)
    if groups and (shipped or not folders):
        click.echo(_SHIPPED)
    return 0


def _print_group(group: Sequence[Row]) -> None:
    click.echo(safe(_setting(group[0])))
    titles = "".join(f"{title:>{width}}" for title, width in zip(_TITLES, _WIDTHS, strict=True))
    wide = max(len(row.method) for row in group)
    click.echo(f"{titles}  {'bytes':<15}  {'method':<{wide}}  artifact")
    for row in group:
        sizes = (row.peak_bytes, row.reserved_bytes, row.process_bytes, row.cap_bytes)
        told = [_gb(num_bytes) for num_bytes in (*sizes, row.host_bytes)]
        told.append("-" if row.step_s is None else f"{row.step_s:.{2 if row.step_s >= 1 else 3}f}")
        told.append("-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}")
        figures = "".join(f"{text:>{width}}" for text, width in zip(told, _WIDTHS, strict=True))
        compared = f" {row.num_compared:,}" if row.num_compared else ""
        end = f"{row.verdict + compared:<15}  {row.method:<{wide}}  {row.artifact}"
        click.echo(f"{figures}  {safe(end)}")
    click.echo()


def _setting(row: Row) -> str:
    depth = f" ({row.num_layers} layers)" if row.num_layers is not None else ""
    length = f"{row.seq_len:,}" if row.seq_len is not None else "?"
    plural = "es" * (row.accumulation > 1)
    batch = f"{row.accumulation} micro-batch{plural} of {row.batch_size} x {length} tokens a step"
    return f"{row.model}{depth}, {batch}, {row.device}"


def _gb(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / 1e9:.{2 if num_bytes >= 1e7 or not num_bytes else 5}f}"
