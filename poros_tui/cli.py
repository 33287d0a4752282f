"""The command `poros-tui`: the screens, or with ``--no-ui`` the same run without them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from poros._version import __version__
from poros.cli_guard import Guard
from poros.cli_train import train_options
from poros.errors import PorosConfigError
from poros_tui.headless import train_headless


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="poros-tui")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--no-ui", is_flag=True, help="Train CONFIG without screens, as `poros train` does.")
@train_options
@click.pass_obj
def cli(guard: Guard, /, config: Path | None, no_ui: bool, **options: Any) -> int:
    """Fine-tune large models on small GPUs.

    The screens are not built yet: use --no-ui CONFIG.
    """
    if not no_ui:
        name = config or "train.yaml"
        raise PorosConfigError(
            "the screens are not built yet", remediation=f"poros-tui --no-ui {name}"
        )
    if config is None:
        raise click.UsageError("--no-ui needs a config: poros-tui --no-ui train.yaml")
    return train_headless(guard, config, **options)


def main() -> None:
    """Run the process's command line and exit."""
    sys.exit(Guard().run(cli, None, name="poros-tui"))
