"""What `poros export` prints: progress on stderr, the answer on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from poros.errors import escape_control as safe
from poros.events import Event, PhaseFinished, PhaseProgressed, PhaseStarted, Warned
from poros.export.export import Exported, export
from poros.told_sizes import told_size

_DOING = {
    "download": "Getting the base model",
    "merge": "Merging",
    "compare": "Comparing logits with the adapter's",
}


def run_export(adapter: str, output: Path, *, as_json: bool, **options: Any) -> int:
    """Export and tell; returns the exit code."""
    done = export(adapter, output, emit=Told(), **options)
    if as_json:
        click.echo(json.dumps(done.to_dict(), ensure_ascii=False))
    else:
        _print(done)
    return 0


class Told:
    """Prints phases and warnings to stderr; on a terminal, progress in place."""

    def __init__(self) -> None:
        """Nothing was shown yet."""
        self._is_terminal = sys.stderr.isatty()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, PhaseStarted) and event.phase in _DOING:
            click.echo(f"{_DOING[event.phase]} ...", err=True)
        elif isinstance(event, PhaseProgressed) and self._is_terminal and event.total:
            click.echo(f"\r  {100 * event.done // event.total:3d} %", nl=False, err=True)
        elif isinstance(event, PhaseFinished) and event.phase in _DOING:
            start = "\r" if self._is_terminal else ""
            click.echo(f"{start}  {event.duration_s:.1f} s", err=True)
        elif isinstance(event, Warned):
            click.echo(safe(event.message), err=True)


def _print(done: Exported) -> None:
    files = "file" if done.num_files == 1 else "files"
    click.echo(
        f"{safe(done.output)}: {safe(done.base)} with {done.num_merged} merged tensors, "
        f"{told_size(done.num_bytes)} in {done.num_files} {files}, {done.dtype}"
    )
    if done.untied:
        click.echo(f"untied, since the adapter changes one of two: {', '.join(done.untied)}")
    if done.logits:
        difference = max(found.largest_difference for found in done.logits)
        largest = max(found.largest_logit for found in done.logits)
        same = sum(found.same_next_token for found in done.logits)
        click.echo(
            f"logits against the adapter on this base, {len(done.logits)} prompts: largest "
            f"difference {difference:.2g} (logits up to {largest:.3g}), the same next token in "
            f"{same}"
        )
