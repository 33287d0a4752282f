"""Files and folders that the system refuses: one way to say which, what and why."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from poros.errors import PorosError, escape_control

E = TypeVar("E", bound=PorosError)


def why(error: OSError) -> str:
    """The system's own words for a failure, as ``Permission denied``."""
    return error.strerror or type(error).__name__


def refused(kind: type[E], what: str, error: OSError, *, where: Path | str, remediation: str) -> E:
    """An error that tells what can't be done with a file, and why.

    Args:
        kind: Of the error.
        what: As ``the file can't be read``.
        error: Of the system.
        where: Which file.
        remediation: The way out.
    """
    place = escape_control(str(where))
    return kind(f"{what} ({why(error)})", where=place, remediation=remediation)
