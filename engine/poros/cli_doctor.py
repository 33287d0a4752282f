"""`poros doctor`: the machine's rows, printed."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from poros.cli_answers import print_json, safe
from poros.errors import PorosConfigError

if TYPE_CHECKING:
    from poros.doctor_rows import Row

_GLYPHS = {"ok": "✓", "warn": "!", "bad": "✗", "unknown": "?"}
_COLOURS = {"ok": "green", "warn": "yellow", "bad": "red", "unknown": "cyan"}


def doctor(
    *,
    as_json: bool,
    kernels: bool,
    timeout_s: float,
    output_dir: Path,
    network: bool = True,
    json_lines: bool = False,
    only: Sequence[str] = (),
) -> int:
    """Print all rows; the exit code is 1 if one of them is bad, else 0.

    Args:
        as_json: For scripts; one document at the end.
        kernels: Whether to try real kernels in a child process.
        timeout_s: For that child.
        output_dir: Where a run would write.
        network: Whether the Hub may be asked.
        json_lines: For programs; a line for each row when it is known, and the verdict.
        only: The rows that are wanted, by id; empty: all.

    Raises:
        PorosConfigError: None of the rows that are wanted is there.
    """
    from poros.doctor import examine

    rows: list[Row] = []
    show = _print_line if json_lines else _pass_over if as_json else _print
    for row in examine(
        output_dir=output_dir,
        timeout_s=timeout_s,
        kernels=kernels,
        network=network,
        only=only,
        trying=_print_trying if json_lines else _pass_over,
    ):
        rows.append(row)
        show(row)
    if only and not rows:
        raise PorosConfigError(
            f"no row {', '.join(only)} on this machine", remediation="see poros doctor for all rows"
        )
    counts = Counter[str](row.state for row in rows)
    record = {"fit": not counts["bad"], "counts": dict(counts)}
    if json_lines:
        print_json({"kind": "verdict", **record})
    elif as_json:
        print_json(record | {"rows": [asdict(row) for row in rows]})
    else:
        told = ", ".join(f"{counts[state]} {state}" for state in _GLYPHS if counts[state])
        click.echo(f"{told}. {_verdict(counts)}")
    return 1 if counts["bad"] else 0


def _print_line(row: Row) -> None:
    print_json({"kind": "row", **asdict(row)})
    sys.stdout.flush()


def _print_trying(name: str, what: str) -> None:
    print_json({"kind": "trying", "id": name, "what": what})
    sys.stdout.flush()


def _pass_over(*_: object) -> None:
    """Nothing is printed yet."""


def _print(row: Row) -> None:
    # click leaves colours out where stdout is no terminal, but does not know NO_COLOR.
    word = f"{_glyph(row.state)} {row.state:<7}"
    click.echo(f"{_coloured(word, row.state)} {row.id:<16} {safe(row.what)}")
    if row.state != "ok":
        click.echo(f"{'':27}{safe(row.meaning)}")
        if row.fix:
            click.echo(f"{'':27}-> {safe(row.fix)}")


def _glyph(state: str) -> str:
    encoding = getattr(sys.stdout, "encoding", "") or "ascii"
    return _GLYPHS[state] if encoding.lower().startswith("utf") else "*"


def _coloured(word: str, state: str) -> str:
    return word if os.environ.get("NO_COLOR") else click.style(word, fg=_COLOURS[state])


def _verdict(counts: Counter[str]) -> str:
    if counts["bad"]:
        return "Mend the rows that are bad first."
    if counts["unknown"]:
        return "Nothing stands in the way among what could be looked at."
    return "This machine can train."
