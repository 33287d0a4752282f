"""`poros-tui --no-ui` and `poros-tui attach --no-ui` over an engine without a trainer."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from poros.cli_guard import Guard
from poros.cli_train import train_options
from poros_tui import headless
from poros_tui.engine import process


@click.group()
def cli() -> None:
    """As the app's, but for its screens."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@train_options
@click.pass_obj
def train(guard, /, config, **options):
    return headless.train_headless(guard, config, **options)


@cli.command()
@click.argument("run", required=False)
@click.option("--json", "json_lines", is_flag=True)
def attach(run, json_lines):
    return headless.attach_headless(run, json_lines=json_lines)


if __name__ == "__main__":
    process.PROGRAM = (sys.executable, "-m", "tests.tui.engine.stub_engine")
    sys.exit(Guard().run(cli, None, name="poros-tui"))
