"""`poros export`: its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from poros.cli_answers import as_json_option
from poros.cli_guard import call_engine

_FOLDER = click.Path(path_type=Path)


@click.command("export")
@click.argument("adapter")
@click.option("-o", "--output", required=True, type=_FOLDER, help="The new model's folder.")
@click.option("--base", metavar="MODEL", help="The base, if not the one that the adapter names.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    show_default=True,
    help="Of the merged weights; auto is the base's own.",
)
@click.option(
    "--max-shard-size", default="4GB", show_default=True, metavar="SIZE", help="Of a file."
)
@click.option(
    "--compare/--no-compare", "compared", default=True, help="Compare logits on three prompts."
)
@as_json_option
def export(adapter: str, **options: Any) -> int:
    """Merge ADAPTER into its 16-bit base and write an ordinary model folder.

    ADAPTER is a LoRA folder, a run's folder, or the beginning of a run's number. The merge runs on
    the CPU, some rows of a matrix at a time. A folder that is there is never written over.
    """
    from poros.adapter_files import find_adapter

    find_adapter(adapter)  # a mistake is told before torch is there
    return call_engine("poros.export.command", "run_export", adapter, **options)
