"""A row's values with their type checked; none is ever converted."""

from __future__ import annotations

from poros.errors import PorosDataError
from poros.rows import Row, type_name


def text_of(row: Row, path: str, value: object) -> str:
    """The value, which must be text.

    Raises:
        PorosDataError: It is something else, or holds a NUL.
    """
    if not isinstance(value, str):
        raise wrong_type(row, path, value, "text")
    if "\0" in value:
        problem = f'key "{path}": a NUL character in the text'
        raise PorosDataError(problem, where=row.where, remediation="remove it")
    return value


def wrong_type(row: Row, path: str, value: object, expected: str) -> PorosDataError:
    """The error about a value of another type."""
    return PorosDataError(
        f'key "{path}": found {type_name(value)}, expected {expected}',
        where=row.where,
        remediation="mend the row; values are never converted",
    )


def keys_of(fields: dict[str, object]) -> str:
    """The first keys, for an error."""
    return ", ".join(list(fields)[:12]) or "none"
