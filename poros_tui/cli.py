"""The command `poros-tui`: the screens, or with ``--no-ui`` the same run without them."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import click

from poros._version import __version__
from poros.cli_guard import Guard
from poros.cli_train import train_options
from poros.errors import PorosConfigError
from poros.home_paths import typed_path
from poros_tui.headless import attach_headless, train_headless

_EPILOG = """\b
Also:
  poros-tui attach [RUN]    watch a run that goes on, or has ended
  poros-tui keys            every key, with the name that app.yaml knows it by
"""


class _Context(click.Context):
    """What has no name of its own, such as `poros-tui train.yaml`, is called as its parent."""

    @property
    def command_path(self) -> str:
        """As in messages."""
        return super().command_path.strip()


class _Open(click.Command):
    """The command without a name."""

    context_class = _Context


class _Commands(click.Group):
    """`poros-tui`, `poros-tui train.yaml` and `poros-tui --no-ui ...` open; a name is a command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Anything but a command's name is for the nameless one."""
        named = bool(args) and args[0] in self.commands and args[0]
        return super().parse_args(ctx, args if named else ["", *args])


@click.group(cls=_Commands)
def cli() -> None:
    """Fine-tune large models on small GPUs."""


@cli.command(
    "",
    cls=_Open,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="poros-tui")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--no-ui", is_flag=True, help="Train CONFIG without screens, as `poros train` does.")
@click.option("--ui", is_flag=True, help="Screens also where CI is set; an error without them.")
@train_options
@click.pass_obj
def open_command(
    guard: Guard, /, config: Path | None, *, no_ui: bool, ui: bool, **options: Any
) -> int:
    """Fine-tune large models on small GPUs.

    Without words the app opens; with CONFIG, a YAML file, it opens on that. The options below are
    those of `poros train`: with one of them, and where there is no terminal, CONFIG is trained
    without screens.
    """
    from poros_tui.terminal import why_no_screens

    asked = any(options.values())
    why = "" if no_ui or asked else why_no_screens({} | os.environ | ({"CI": ""} if ui else {}))
    if not (no_ui or asked or why):
        return _open(config)
    if ui and why:
        raise PorosConfigError(f"no screens here: {why}", remediation="run it in a terminal")
    if config is None:
        _refuse_without_config(why)
    assert config is not None
    if why:
        click.echo(f"poros-tui: no screens here ({why}); training {config} without them", err=True)
    return train_headless(guard, config, **options)


@cli.command("attach")
@click.argument("run", required=False)
@click.option("--no-ui", is_flag=True, help="Print what it does as lines.")
@click.option("--json", "json_lines", is_flag=True, help="All its events as JSON lines on stdout.")
def attach_command(run: str | None, *, no_ui: bool, json_lines: bool) -> int:
    """Watch a run that goes on, or has ended; leaving it leaves it alone.

    RUN is its folder, or the beginning of its number; without it, the run that goes on, or else the
    latest one.
    """
    from poros_tui.engine.process import find_run
    from poros_tui.terminal import why_no_screens

    if no_ui or json_lines or why_no_screens(os.environ):
        return attach_headless(run, json_lines=json_lines)
    return _open(run=find_run(run).folder)


@cli.command("keys")
@click.pass_obj
def keys_command(guard: Guard, /) -> int:
    """Every key, what it does, and the name by which app.yaml can change it."""
    from poros_tui import settings
    from poros_tui.app import PorosApp
    from poros_tui.keys import all_actions, shared_actions, written

    chosen = settings.load()
    for action in (*all_actions(list(PorosApp.BINDINGS)), *shared_actions()):
        key = written(chosen.keys.get(action.id, action.keys))
        click.echo(f"{key:<8} {action.id:<22} {action.title}")
    click.echo(
        f"\nOther keys: lines such as `app.theme: f4` below `keys:` in {settings.settings_file()}"
    )
    return 0


def _refuse_without_config(why: str) -> None:
    if why:
        raise PorosConfigError(
            f"no screens here: {why}", remediation="give a config: poros-tui --no-ui train.yaml"
        )
    raise click.UsageError("--no-ui needs a config: poros-tui --no-ui train.yaml")


def _open(config: Path | None = None, run: Path | None = None) -> int:
    """The screens; returns their exit code."""
    from poros_tui import state, terminal
    from poros_tui.app import PorosApp
    from poros_tui.engine import tasks

    shared = state.load()
    if config is not None:
        config = typed_path(config)
        if not config.is_file():
            raise PorosConfigError(f"{config} is no file", remediation="poros init writes one")
        shared.update(config_to_open=config.absolute())
    if run is not None:
        shared.update(run_folder=run)
    app = PorosApp(shared, first="config" if config else "train" if run else "home")
    with terminal.only_ours(terminal.log_file()) as app.let_go_of_terminal:
        threading.excepthook = app.thread_failed
        try:
            code = app.run()
        finally:
            threading.excepthook = threading.__excepthook__
            tasks.end_all()
    if app.crash is not None:
        raise app.crash
    if app.last_words:
        click.echo(app.last_words, err=True)
    return code or 0


def main() -> None:
    """Run the process's command line and exit."""
    sys.exit(Guard().run(cli, None, name="poros-tui"))
