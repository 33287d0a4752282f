"""`poros models`: models to begin with: those that are here, known ones, and what the Hub finds."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from poros.cli_answers import as_json_option, print_json, safe

if TYPE_CHECKING:
    from poros.model_suggestion import Suggestion


@click.command("models")
@click.argument("words", nargs=-1)
@click.option("--hub", is_flag=True, help="Ask the Hub for models with WORDS in their names.")
@as_json_option
def models(words: tuple[str, ...], *, hub: bool, as_json: bool) -> int:
    """List models to train: those that are on this machine, then known ones, or the Hub's.

    Each has what is proved of its family. WORDS must all be in the name.
    """
    from poros.errors import PorosConfigError
    from poros.hub_names import is_offline
    from poros.model_names import search_hub, suggestions

    text = " ".join(words)
    if hub and not text:
        raise PorosConfigError("no words to search for", remediation="poros models --hub WORDS")
    if hub and is_offline():
        raise PorosConfigError(
            "HF_HUB_OFFLINE is set: the Hub is not asked", remediation="unset HF_HUB_OFFLINE"
        )
    found = search_hub(text) if hub else suggestions(text)
    if as_json:
        print_json([asdict(one) for one in found])
        return 0
    for one in found:
        click.echo("  ".join([f"{one.label:<12}", f"{_size(one):>8}", safe(one.name), _note(one)]))
    if not found:
        click.echo("none; any model's name or folder can be given to `poros check`", err=True)
    return 0


def _size(one: Suggestion) -> str:
    return f"{one.num_params:.3g} B" if one.num_params else ""


def _note(one: Suggestion) -> str:
    notes = ["here"] * (one.place == "here") + ["gated"] * one.is_gated
    return f"({', '.join(notes)})" if notes else ""
