"""Rows of a data file as they stand, and the shape they would be read as; needs no torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from poros.errors import PorosConfigError, PorosDataError
from poros.home_paths import typed_path
from poros.row_shapes import RowShape, detect_shape, to_messages, to_text
from poros.rows import BadLines, OnBadLine, Row, iterate_rows, looks_like_path, type_name

MOST_ROWS = 20_000
"""Rows that are looked at."""
SHOWN_ROWS = 20
"""Rows that are shown."""
MOST_CHARACTERS = 4000
"""Of a value that is shown."""

_INSTALL = 'pip install "poros-tui[train]"'


def raw_rows(data: str, *, on_bad_line: OnBadLine = "error") -> dict[str, Any]:
    """What a file holds.

    Args:
        data: A ``.jsonl``, ``.ndjson``, ``.json`` or ``.csv`` file.
        on_bad_line: Whether a bad line ends the reading or is left out.

    Returns:
        A record for JSON. ``shape`` is None where the keys fit none, ``problem`` then says why;
        ``num_unfit`` rows differ from the shape; ``rows`` are the first ones, each with its
        ``fields`` and, if it has the shape, its ``turns`` as role and text.

    Raises:
        PorosConfigError: It is a kind of data that only the train extra reads.
        PorosDataError: The file, or a line of it, can't be read.
    """
    return rows_and_fault(data, on_bad_line=on_bad_line)[0]


def rows_and_fault(
    data: str, *, on_bad_line: OnBadLine = "error"
) -> tuple[dict[str, Any], PorosDataError | None]:
    """What `raw_rows` gives, and why no run could train on it; None: one could."""
    path = typed_path(data)
    _refuse_others(data, path)
    bad_lines = BadLines(on_bad_line)
    rows = list(islice(iterate_rows(path, bad_lines), MOST_ROWS + 1))
    is_cut, rows = len(rows) > MOST_ROWS, rows[:MOST_ROWS]
    if not rows:
        raise PorosDataError("no rows", where=data, remediation="write one example a line")
    shape, unknown = _shape(rows)
    unfit = [error for row in rows if shape and (error := _unfit(row, shape))]
    first = unknown or next(iter(unfit), None)
    found = {
        "data": data,
        "raw": True,
        "num_bytes": path.stat().st_size,
        "num_rows": len(rows),
        "is_cut": is_cut,
        "shape": shape.name if shape else None,
        "problem": str(first) if first else None,
        "num_unfit": len(unfit),
        "bad_lines": [str(error) for error in bad_lines.found],
        "keys": _keys(rows),
        "duplicates": _duplicates(rows),
        "rows": [_shown(row, shape) for row in rows[:SHOWN_ROWS]],
    }
    return found, unknown or _fault(unfit, bad_lines, len(rows))


def _fault(
    unfit: Sequence[PorosDataError], bad_lines: BadLines, num_rows: int
) -> PorosDataError | None:
    """What a run would say of rows that don't fit the shape, which to it are bad lines too."""
    try:
        for error in unfit:
            bad_lines.refuse(error)
    except PorosDataError as fault:
        return fault
    return unfit[0] if len(unfit) == num_rows else None


def _refuse_others(data: str, path: Path) -> None:
    if path.suffix.lower() == ".parquet" or not (path.exists() or looks_like_path(data)):
        has_extra = all(find_spec(name) for name in ("torch", "datasets"))
        what = "Parquet files" if path.suffix.lower() == ".parquet" else "data sets of the Hub"
        raise PorosConfigError(
            f"{what} are read by the train extra",
            where=f"data {data}",
            remediation=f"{'' if has_extra else f'{_INSTALL}, and '}name a model: --model",
        )


def _shape(rows: Sequence[Row]) -> tuple[RowShape | None, PorosDataError | None]:
    try:
        return detect_shape(rows), None
    except PorosDataError as error:
        return None, error


def _unfit(row: Row, shape: RowShape) -> PorosDataError | None:
    try:
        _turns(row, shape)
    except PorosDataError as error:
        return error
    return None


def _turns(row: Row, shape: RowShape) -> list[dict[str, str]]:
    if not shape.is_conversation:
        return [{"role": "", "text": to_text(row, shape)}]
    return [{"role": turn["role"], "text": turn["content"]} for turn in to_messages(row, shape)]


def _keys(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each key with the kinds of its values and the number of rows that have it."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        for key, value in row.fields.items():
            found.setdefault(key, Counter())[type_name(value)] += 1
    return [
        {"name": name, "kinds": list(kinds), "num_rows": kinds.total()}
        for name, kinds in found.items()
    ]


def _duplicates(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """The line of each row that is another's copy, and that other's."""
    seen: dict[str, int] = {}
    found = []
    for row in rows:
        first = seen.setdefault(json.dumps(row.fields, sort_keys=True), row.line)
        if first != row.line:
            found.append((row.line, first))
    return found


def _shown(row: Row, shape: RowShape | None) -> dict[str, Any]:
    try:
        turns = _turns(row, shape) if shape else None
    except PorosDataError:
        turns = None
    if turns is not None:
        turns = [turn | {"text": turn["text"][:MOST_CHARACTERS]} for turn in turns]
    fields = {key: _cut(value) for key, value in row.fields.items()}
    return {"line": row.line, "fields": fields, "turns": turns}


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:MOST_CHARACTERS]
