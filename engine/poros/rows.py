"""Rows of a local data file, exactly as they stand there: JSON Lines, a JSON list, or CSV.

Nothing is guessed, repaired or converted. What can't be read is refused with file, line and column,
or, where the user asked for it, left out and listed.
"""

from __future__ import annotations

import csv
import re
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal

from poros.errors import PorosDataError, escape_control
from poros.home_paths import typed_path
from poros.os_errors import refused
from poros.strict_json import StrictJsonError, parse, parse_items

OnBadLine = Literal["error", "skip"]

MAX_BAD_LINES = 100
"""With ``on_bad_line: skip``, more bad lines than this mean that the file itself is wrong."""

EXCERPT_CHARACTERS = 80

_BOM = "\ufeff"
_BLANK = " \t\r\n"
_HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?(?::[\w.-]+)?", re.ASCII)
_FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt", ".gz", ".zst")
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its fields and where it stands.

    Args:
        line: Line of the file where the row begins, from 1; its number where there are no lines.
        fields: Keys and values, as read.
        source: The file or data set it is from.
    """

    line: int
    fields: dict[str, Any]
    source: str

    @property
    def where(self) -> str:
        """``source:line``, as errors name it."""
        return f"{self.source}:{self.line}"


@dataclass(slots=True)
class BadLines:
    """What to do with lines that can't be used, and those found so far."""

    policy: OnBadLine = "error"
    limit: int = MAX_BAD_LINES
    found: list[PorosDataError] = field(default_factory=list)

    def refuse(self, error: PorosDataError) -> None:
        """Raise the error, or note it when bad lines are to be left out.

        Raises:
            PorosDataError: The policy is ``error``, or this is one bad line too many.
        """
        if self.policy == "error":
            raise error
        self.found.append(error)
        if len(self.found) > self.limit:
            raise PorosDataError(
                f"more than {self.limit} bad lines; the last one: {error.message}",
                where=error.where,
                remediation="mend the file; on_bad_line: skip is for a few bad lines",
            ) from error


def read_rows(
    path: Path, on_bad_line: OnBadLine = "error", *, bad_lines: BadLines | None = None
) -> list[Row]:
    """All rows of a file, in its order.

    Args:
        path: A ``.jsonl``, ``.ndjson``, ``.json`` or ``.csv`` file.
        on_bad_line: Whether a bad line ends the reading or is left out.
        bad_lines: Takes the bad lines in place of ``on_bad_line``, for a caller that reports them.

    Raises:
        PorosDataError: The file, or a line of it, can't be read.
    """
    return list(iterate_rows(path, BadLines(on_bad_line) if bad_lines is None else bad_lines))


def iterate_rows(path: Path, bad_lines: BadLines) -> Iterator[Row]:
    """The same one after another, for who wants the first ones only.

    Raises:
        PorosDataError: The file, or a line of it, can't be read.
    """
    check_is_file(path)
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise PorosDataError(
            f"unknown kind of data file {path.suffix or path.name!r}",
            where=str(path),
            remediation=f"use one of {', '.join(_READERS)}, .parquet",
        )
    try:
        _refuse_utf_16(path)
        yield from reader(path, bad_lines)
    except OSError as error:
        raise refused(
            PorosDataError,
            "the file can't be read",
            error,
            where=path,
            remediation="check its permissions and the disk",
        ) from error


def _refuse_utf_16(path: Path) -> None:
    """What Windows may write; not a line of it could be read."""
    with path.open("rb") as file:
        is_utf_16 = file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)
    if is_utf_16:
        raise PorosDataError(
            "the file is UTF-16, and UTF-8 is wanted",
            where=f"{path}:1:1",
            remediation="save it as UTF-8: an editor asks for the encoding, PowerShell takes"
            " -Encoding utf8",
        )


def check_is_file(path: Path) -> None:
    """Refuse what is no file.

    Raises:
        PorosDataError: Nothing is there, or a folder.
    """
    if path.is_dir():
        raise PorosDataError(
            "a folder stands where a data file must",
            where=str(path),
            remediation="name the file inside it",
        )
    if not path.exists():
        raise PorosDataError("no such data file", where=str(path), remediation="check the path")


def looks_like_path(name: str) -> bool:
    """Whether a name of data that is not there was meant for a file, not for the Hub."""
    if name.startswith(("/", ".", "~")) or name.lower().endswith(_FILE_SUFFIXES):
        return True
    return _HUB_NAME.fullmatch(name) is None


def refuse_missing(name: str) -> None:
    """Refuse the path of a file that is not there; nothing is read, and no name is looked up.

    Raises:
        PorosDataError: Nothing is there, or a folder; or stdin is meant, which is read once only.
    """
    if name == "-":
        raise PorosDataError(
            "data can't come through a pipe",
            where="-",
            remediation="write it to a file, and give the file's name",
        )
    path = typed_path(name)
    if path.exists() or looks_like_path(name):
        check_is_file(path)


def read_json_lines(path: Path, bad_lines: BadLines) -> Iterator[Row]:
    """One JSON object a line; blank lines are passed over."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            try:
                text = _decode(raw, path, line).strip(_BLANK)
                if text:
                    yield Row(line, _object(text, raw, path, line), str(path))
            except PorosDataError as error:
                bad_lines.refuse(error)


def read_json_list(path: Path, bad_lines: BadLines) -> Iterator[Row]:
    """One list of objects; a file of objects without the list is read line by line."""
    raw = path.read_bytes()
    if raw.removeprefix(_BOM.encode()).lstrip(b" \t\r\n").startswith(b"{"):
        yield from read_json_lines(path, bad_lines)
        return
    text = "".join(_decode(part, path, n) for n, part in enumerate(BytesIO(raw), start=1))
    if not text.strip(_BLANK):
        return
    line, counted_to = 1, 0
    try:
        for offset, fields in parse_items(text):
            line += text.count("\n", counted_to, offset)
            counted_to = offset
            if isinstance(fields, dict):
                yield Row(line, fields, str(path))
                continue
            column = offset - text.rfind("\n", 0, offset)
            problem = f"expected an object, found {type_name(fields)}"
            bad_lines.refuse(_bad_line(problem, path, line, column, text[offset:]))
    except StrictJsonError as error:
        start = text.rfind("\n", 0, error.offset) + 1
        line = text.count("\n", 0, error.offset) + 1
        column = error.offset - start + 1
        # Past a broken element nobody knows where the next one begins: skipping is not possible.
        raise _bad_line(error.problem, path, line, column, text[start:]) from None


def read_csv(path: Path, bad_lines: BadLines) -> Iterator[Row]:
    """Comma-separated values under a line of column names; every value is text."""
    with path.open("rb") as file, _fields_of_any_length():
        records = _csv_records(file, path)
        header_line, header = next(records, (1, []))
        _refuse_other_separator(header, path, header_line)
        if len(set(header)) < len(header) or "" in header:
            problem = "the line of column names has an empty or a repeated name"
            raise _bad_line(problem, path, header_line, 1, ",".join(header))
        for line, values in records:
            if len(values) == len(header):
                yield Row(line, dict(zip(header, values, strict=True)), str(path))
            else:
                problem = f"{len(values)} values under {len(header)} column names"
                bad_lines.refuse(_bad_line(problem, path, line, 1, ",".join(values)))


def _refuse_other_separator(header: list[str], path: Path, line: int) -> None:
    """Spreadsheets of many countries part columns by semicolons: one long name would be no help."""
    if len(header) != 1:
        return
    for sign, name in _SEPARATORS.items():
        if sign in header[0]:
            raise PorosDataError(
                f"the columns are parted by {name}, not by commas: {_excerpt(header[0])}",
                where=f"{path}:{line}",
                remediation="save it as CSV with commas, or write JSON Lines",
            )


def type_name(value: object) -> str:
    """A value's type in the words of JSON."""
    names = {str: "text", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
    if value is None:
        return "null"
    return "a list" if isinstance(value, list) else names.get(type(value), type(value).__name__)


def _csv_records(file: BinaryIO, path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (_decode(raw, path, n) for n, raw in enumerate(file, start=1))
    reader = csv.reader(lines, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            # An open quote swallows what follows it: skipping is not possible.
            raise _bad_line(f"not CSV: {error}", path, line, 1, "") from None
        if values is None:
            return
        if values:
            yield line, values


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    # The module refuses fields of 128 KiB and more, and has this one setting for the whole process.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _decode(raw: bytes, path: Path, line: int) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8")
        shown = raw.decode("utf-8", "backslashreplace")
        problem = f"not UTF-8: byte 0x{raw[error.start]:02x}"
        raise _bad_line(problem, path, line, len(good) + 1, shown) from None
    if line == 1:
        text = text.removeprefix(_BOM)
    if "\0" in text:
        raise _bad_line("a NUL character", path, line, text.index("\0") + 1, text)
    return text


def _object(text: str, raw: bytes, path: Path, line: int) -> dict[str, Any]:
    indent = len(raw) - len(raw.lstrip(b" \t\r\n"))
    try:
        fields = parse(text)
    except StrictJsonError as error:
        raise _bad_line(error.problem, path, line, indent + error.offset + 1, text) from None
    if not isinstance(fields, dict):
        problem = f"expected an object, found {type_name(fields)}"
        raise _bad_line(problem, path, line, indent + 1, text)
    return fields


def _bad_line(problem: str, path: Path, line: int, column: int, text: str) -> PorosDataError:
    excerpt = _excerpt(text)
    return PorosDataError(
        f"{problem}; the line begins: {excerpt}" if excerpt else problem,
        where=f"{path}:{line}:{column}",
        remediation="mend the line, or set on_bad_line: skip to leave such lines out",
    )


def _excerpt(text: str) -> str:
    return escape_control(text[:EXCERPT_CHARACTERS].strip(_BLANK))


_READERS: dict[str, Callable[[Path, BadLines], Iterator[Row]]] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json_list,
    ".csv": read_csv,
}
