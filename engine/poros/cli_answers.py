"""How commands answer: as JSON or as lines for people, and what is asked before a removal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from poros.errors import PorosConfigError, escape_control
from poros.typed_sizes import typed_gb

Command = TypeVar("Command", bound=Callable[..., Any])


class Gigabytes(click.ParamType[float | str]):
    """A size of an option: a number of GB, with the unit or without.

    Args:
        words: What may stand in its place.
        or_zero: 0 is such a size too.
    """

    def __init__(self, *words: str, or_zero: bool = False) -> None:
        """Of one option."""
        self.name = "|".join((*words, "GB"))
        self._words, self._or_zero = words, or_zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        """The word, or the number."""
        try:
            size_gb = typed_gb(str(value), *self._words)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if isinstance(size_gb, float):
            least = 0.0 if self._or_zero else math.ulp(0.0)
            if not least <= size_gb < math.inf:
                above = "" if self._or_zero else " above 0"
                self.fail(f"{value!r} is no number of GB{above}", param, ctx)
        return size_gb


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
