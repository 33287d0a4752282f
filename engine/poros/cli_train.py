"""`poros train`, which `poros-tui --no-ui` runs too."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poros.cli_answers import print_json
from poros.cli_guard import Guard, call_engine, tell

if TYPE_CHECKING:
    from poros.config import PorosConfig
    from poros.config_load import LoadedConfig
    from poros.errors import PorosError

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one key."),
    click.option("--output-dir", metavar="DIR", help="The run's folder."),
    click.option("--device", metavar="DEVICE", help="auto, cpu or cuda:N."),
    click.option("--resume", metavar="WHAT", help="auto, never or a checkpoint's folder."),
    click.option(
        "--allow-inexact-resume",
        is_flag=True,
        default=None,
        help="Resume although data, settings or machine differ.",
    ),
    click.option(
        "--survive-hangup", is_flag=True, default=None, help="Go on when the terminal closes."
    ),
    click.option(
        "--trust-remote-code",
        is_flag=True,
        default=None,
        help="Take a model whose config names Python of its own; it is not run.",
    ),
    click.option(
        "--memory-map", is_flag=True, help="Name what lies in memory at the highest peak."
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Look at config, output folder, model and data, and stop; reads no weight.",
    ),
    click.option("--json", "json_lines", is_flag=True, help="Events as JSON lines on stdout."),
)


def train_options(command: Command) -> Command:
    """Give a click command the options of a training run."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def train(
    guard: Guard,
    path: Path,
    /,
    *,
    settings: tuple[str, ...],
    dry_run: bool,
    json_lines: bool,
    memory_map: bool,
    detached: bool = False,
    run: Callable[[PorosConfig], int] | None = None,
    **flags: Any,
) -> int:
    """Load the config and train, or only check it; returns the exit code.

    Args:
        guard: Learns the run folder.
        path: The YAML file.
        settings: Texts of ``--set``.
        dry_run: Check the config and stop.
        json_lines: Events, or the checked config, as JSON.
        memory_map: Write `memory_map.json` into the run's folder.
        detached: Run for somebody who may go, as `run_session` takes it.
        run: Trains the checked config in another way than this process; returns the exit code.
        flags: Values of the other options, by key of the config.
    """
    began_s = time.monotonic()
    from poros import failpoints, starting_runs
    from poros.config import require_dataset
    from poros.config_load import load_config

    # Whoever started a detached run reads of its end in events.
    with errors_as_events(guard, json_lines=json_lines or detached):
        loaded = load_config(path, settings=settings, flags=flags)
        require_dataset(loaded.config, where=str(path))
        failpoints.check_variable()
        if dry_run:
            return _dry_run(loaded, path, json_lines=json_lines)
        guard.run_folder = Path(loaded.config.output_dir)
        starting_runs.refuse_starting(guard.run_folder)
        if run is not None:
            return run(loaded.config)
        _refuse_place(loaded.config)
        with starting_runs.noted(guard.run_folder):
            return call_engine(
                "poros.training.command",
                "run_session",
                loaded.config,
                json_lines=json_lines,
                memory_map=memory_map,
                began_s=began_s,
                detached=detached,
            )


def _refuse_place(config: PorosConfig) -> None:
    """What a look tells, now and not after seconds of imports.

    Who holds the folder is left to the run: by then an earlier one may have given it back.
    """
    from poros.home_paths import typed_path
    from poros.run_folder import refuse_bad_place, refuse_missing_checkpoint

    refuse_bad_place(typed_path(config.output_dir))
    refuse_missing_checkpoint(config.resume)


@contextlib.contextmanager
def errors_as_events(guard: Guard, *, json_lines: bool) -> Iterator[None]:
    """Where events are printed, an error that ends the command before a run is one as well."""
    from poros.errors import PorosError

    guard.tells_itself = json_lines
    try:
        yield
    except PorosError as error:
        if json_lines:
            click.echo(_failed_line(error), nl=False)
        raise


def _dry_run(loaded: LoadedConfig, path: Path, *, json_lines: bool) -> int:
    """Tell what the run would find, and all that stands in its way; the first of that's code."""
    from poros import dry_run

    config = loaded.config
    can_tokenise = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    found, problems = dry_run.looked_at(config, _read_data if can_tokenise else None)
    if json_lines:
        print_json({
            "config": config.model_dump(mode="json"), "origins": loaded.origins,
            "looked_at": found, "problems": [problem.record() for problem in problems],
        })  # fmt: skip
    else:
        given = [key for key, origin in loaded.origins.items() if origin != "default"]
        for key in given:
            click.echo(f"{key}: {getattr(config, key)!r}  ({loaded.origins[key]})")
        for line in dry_run.lines(found):
            click.echo(line)
    if problems:
        for problem in problems:
            tell(problem)
        return problems[0].exit_code
    if not json_lines:
        click.echo(f"{path} is valid, and nothing was found in its way; no weight was read.")
    return 0


def _read_data(config: PorosConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    call_engine("poros.training.dry_run", "read_data", config, found.update)
    return found


def _failed_line(error: PorosError) -> str:
    from poros.events import RunFailed, to_line

    event = RunFailed(
        step=0,
        type=error.type,
        code=error.code,
        message=str(error),
        where=error.where,
        remediation=error.remediation,
        exit_code=error.exit_code,
    )
    return to_line(event, seq=0, time_s=time.time())
