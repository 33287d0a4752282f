"""Where rows are from: a local file, a data set of the Hub, or nowhere (``synthetic``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from poros.errors import PorosConfigError, PorosDataError, PorosHubError
from poros.home_paths import typed_path
from poros.rows import BadLines, Row, check_is_file, looks_like_path, read_rows

DEFAULT_SYNTHETIC_SAMPLES = 256

_SYNTHETIC = re.compile(r"synthetic(?::(.*))?", re.DOTALL)


def synthetic_samples(name: str) -> int | None:
    """How many samples ``synthetic[:n]`` asks for; None where the name is something else.

    Raises:
        PorosConfigError: What follows the colon is no count.
    """
    match = _SYNTHETIC.fullmatch(name)
    if match is None:
        return None
    count = match.group(1)
    if count is None:
        return DEFAULT_SYNTHETIC_SAMPLES
    if re.fullmatch("[1-9][0-9]{0,8}", count) is None:
        raise PorosConfigError(
            f"{count[:40]!r} is not a number of samples",
            where=f"dataset {name[:60]!r}",
            remediation="write synthetic or synthetic:256",
        )
    return int(count)


def read_source(name: str, *, split: str, bad_lines: BadLines) -> list[Row]:
    """The rows of a file or of a data set.

    Args:
        name: A path, or ``owner/name`` or ``owner/name:config`` of the Hub.
        split: The data set's split; a file is one split by itself.
        bad_lines: What to do with lines that can't be read.

    Raises:
        PorosDataError: The file is missing or wrong.
        PorosHubError: The data set can't be had.
    """
    path = typed_path(name)
    if not path.exists() and not looks_like_path(name):
        return read_dataset(name, split=split)
    check_is_file(path)
    if path.suffix.lower() == ".parquet":
        return read_parquet(path)
    return read_rows(path, bad_lines=bad_lines)


def read_parquet(path: Path) -> list[Row]:
    """The rows of a Parquet file; a row's line is its number.

    Raises:
        PorosDataError: The file is no Parquet.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise PorosDataError(
            f"not a readable Parquet file ({_first_line(error)})",
            where=str(path),
            remediation="write or download the file again",
        ) from error
    return _rows(table.to_pylist(), str(path))


def read_dataset(name: str, *, split: str) -> list[Row]:
    """The rows of a split of a data set of the Hub; a row's line is its number.

    Raises:
        PorosHubError: The library, the Hub or the network said no.
    """
    import datasets

    repo, _, config = name.partition(":")
    load: Callable[..., Any] = datasets.load_dataset
    try:
        loaded = load(repo, config or None, split=split)
    except _hub_faults() as error:
        raise PorosHubError(
            f"can't load the data set ({type(error).__name__}: {_first_line(error)})",
            where=f"{name}, split {split}",
            remediation="check name, split, network and login; a local file needs its path",
        ) from error
    return _rows(loaded, f"{name}[{split}]")


def _rows(records: Iterable[Mapping[str, Any]], source: str) -> list[Row]:
    return [
        Row(number, _without_nulls(record), source)
        for number, record in enumerate(records, start=1)
    ]


def _without_nulls(cell: Any) -> Any:
    # A column has a cell in every row, and so has a key of an object in a column: a null there is
    # the only way to say that a key is absent.
    if isinstance(cell, Mapping):
        return {key: _without_nulls(value) for key, value in cell.items() if value is not None}
    return [_without_nulls(item) for item in cell] if isinstance(cell, list) else cell


def _hub_faults() -> tuple[type[Exception], ...]:
    from datasets.exceptions import DatasetsError
    from huggingface_hub import errors

    # The HTTP client's name differs between versions of the hub library, which imports its base.
    transport = getattr(errors, "HTTPError", OSError)
    # ValueError: an unknown config or split. OSError: not found, offline, a broken connection.
    return (DatasetsError, errors.HfHubHTTPError, transport, OSError, ValueError)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
