"""How commands answer: as JSON or as lines for people, and what is asked before a removal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from poros.errors import PorosConfigError, escape_control

Command = TypeVar("Command", bound=Callable[..., Any])


def as_json_option(command: Command) -> Command:
    """Give a click command ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="The answer as JSON on stdout.")(
        command
    )


def yes_option(command: Command) -> Command:
    """Give a click command ``--yes``."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(command)


def print_json(record: object) -> None:
    """One document on one line."""
    text = json.dumps(record, ensure_ascii=False)
    # Undecodable bytes of a path are lone surrogates, which no stdout takes; JSON has escapes.
    click.echo(text.encode("utf-8", "backslashreplace").decode())


def safe(text: str) -> str:
    """A text that drives no terminal."""
    return escape_control(text)


def ask_first(things: Sequence[str], *, yes: bool) -> None:
    """Ask before something is removed.

    Args:
        things: What goes; nothing is asked if it is empty.
        yes: It was answered on the command line.

    Raises:
        PorosConfigError: Nobody can be asked.
        click.Abort: The answer was no.
    """
    if yes or not things:
        return
    told = safe(", ".join(things))
    if not sys.stdin.isatty():
        raise PorosConfigError(f"this removes {told}", remediation="add --yes, if that is meant")
    click.confirm(f"Remove {told}?", abort=True, err=True)
