"""`poros completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "_POROS_COMPLETE"
"""The shell sets it when it asks for words."""

SHELLS = ("bash", "fish", "zsh")

_PLACES = {
    "bash": "poros completion bash > ~/.local/share/bash-completion/completions/poros",
    "fish": "poros completion fish > ~/.config/fish/completions/poros.fish",
    "zsh": "poros completion zsh > a folder of $fpath/_poros, or: source <(poros completion zsh)",
}


def script(shell: str) -> str:
    """The text that a shell has to read once."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # the choices are the shells that click knows
    name = "poros"
    template = kind.source_template
    variables = {
        "complete_func": f"_{name}_completion",
        "complete_var": VARIABLE,
        "prog_name": name,
    }
    return f"# {_PLACES[shell]}\n" + template % variables


def answer(cli: click.Command, environ: Mapping[str, str] = os.environ) -> int | None:
    """Tell the shell the words that fit, if that is what it asks for.

    Returns:
        The exit code; None: it did not ask.
    """
    instruction = environ.get(VARIABLE)
    if not instruction:
        return None
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "poros", VARIABLE, instruction)
