"""What is said on the terminal: answers to stdout as they come, everything else to stderr."""

from __future__ import annotations

import click

from poros.errors import escape_control
from poros.events import Event, PhaseStarted, Warned

_DOING = {
    "download": "Getting the base model ...",
    "quantise": "Quantising the base, once ...",
    "load": "Loading the base ...",
}


def told(event: Event) -> None:
    """Show a phase or a warning."""
    if isinstance(event, PhaseStarted) and event.phase in _DOING:
        click.echo(_DOING[event.phase], err=True)
    elif isinstance(event, Warned):
        click.echo(escape_control(event.message), err=True)


def shown(text: str) -> None:
    """Write a bit of an answer; what would drive the terminal is escaped."""
    click.echo(plain(text), nl=False)


def plain(text: str) -> str:
    r"""The text with its lines and tabs; other control characters as ``\x1b``."""
    kept = (c if c in "\n\t" else escape_control(c) for c in text)
    return "".join(kept)
