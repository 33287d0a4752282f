"""Strict YAML 1.2: a file becomes plain values, and every key keeps its line and column.

Only the core schema: no anchors, aliases, tags, directives, second documents or repeated keys. The
parser's events are read one by one, so nesting costs no recursion and stops at `MAX_DEPTH`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from poros.errors import PorosConfigError

MAX_BYTES = 1_000_000
MAX_DEPTH = 64
MAX_DIGITS = 400

KeyPath: TypeAlias = tuple[str | int, ...]

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_CORE_SCHEMA: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"~|null|Null|NULL|"), lambda text: None),
    (re.compile(r"true|True|TRUE|false|False|FALSE"), lambda text: text.lower() == "true"),
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text[2:], 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text[2:], 16)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: -math.inf if text[0] == "-" else math.inf),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda text: math.nan),
)


@dataclass(frozen=True)
class Document:
    """A file's mapping, and where each key path stands as ``file:line:column``."""

    values: dict[str, Any]
    places: dict[KeyPath, str]


def read_document(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        PorosConfigError: The file can't be read or isn't strict YAML 1.2 with a mapping on top.
    """
    return parse_document(_text_of(path), name=str(path))


def parse_document(text: str, *, name: str) -> Document:
    """As `read_document`, from text; ``name`` stands for the file in messages."""
    _refuse_control_characters(text, name)
    builder = _Builder(name)
    for event in _events_of(text, name):
        builder.take(event)
    return builder.document()


def scalar_value(text: str) -> Any:
    """The core schema's value of an unquoted scalar.

    Raises:
        ValueError: A number of more than `MAX_DIGITS` digits.
    """
    for pattern, construct in _CORE_SCHEMA:
        if pattern.fullmatch(text):
            if len(text) > MAX_DIGITS:
                raise ValueError(f"a number of {len(text)} digits")
            return construct(text)
    return text


def _events_of(text: str, name: str) -> Iterator[Any]:
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    # The parser asserts, and lets OverflowError and others out, on some malformed texts.
    except Exception as error:  # noqa: BLE001 - whatever it is, the text is at fault
        raise _syntax_error(error, text, name) from None


def _text_of(path: Path) -> str:
    try:
        if path.is_dir():
            raise PorosConfigError(
                "the config is a folder", where=str(path), remediation="name the YAML file in it"
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PorosConfigError(
            f"the config can't be read ({reason})",
            where=str(path),
            remediation="check the path",
        ) from None
    if len(data) > MAX_BYTES:
        raise PorosConfigError(
            f"the config is larger than {MAX_BYTES} bytes",
            where=str(path),
            remediation="is this the data? name it under dataset:",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PorosConfigError(
            f"byte 0x{data[error.start]:02x} is not UTF-8",
            where=f"{path}:{line}",
            remediation="save the file as UTF-8",
        ) from None


def _refuse_control_characters(text: str, name: str) -> None:
    match = _CONTROL.search(text)
    if match is None:
        return
    what = "NUL" if match[0] == "\0" else f"control character U+{ord(match[0]):04X}"
    raise PorosConfigError(
        f"{what} in the config",
        where=_place_of_offset(text, match.start(), name),
        remediation="delete it",
    )


def _place_of_offset(text: str, offset: int, name: str) -> str:
    line = text.count("\n", 0, offset) + 1
    return f"{name}:{line}:{offset - text.rfind(chr(10), 0, offset)}"


def _syntax_error(error: Exception, text: str, name: str) -> PorosConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if not isinstance(error, MarkedYAMLError) or mark is None:
        reason = str(error).partition("\n")[0]
        return PorosConfigError(f"not YAML 1.2 ({reason})", where=name)
    lines = text.split("\n")
    source = lines[mark.line].rstrip("\r") if mark.line < len(lines) else ""
    reason = str(error.problem or error.context or "syntax").partition("\n")[0]
    remediation = "mend the line"
    if "\t" in source[: mark.column + 1]:
        reason, remediation = "a tab where YAML wants spaces", "indent with spaces"
    return PorosConfigError(
        f"not YAML 1.2 ({reason}): {source.strip()[:80]!r}",
        where=f"{name}:{mark.line + 1}:{mark.column + 1}",
        remediation=remediation,
    )


@dataclass
class _Open:
    """A mapping or a sequence whose end has not come yet."""

    path: KeyPath
    values: dict[str, Any] | list[Any]
    key: str | None = None
    seen: dict[str, str] = field(default_factory=dict)


class _Builder:
    """Builds values from parser events and collects what is not allowed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: list[_Open] = []
        self._places: dict[KeyPath, str] = {}
        self._problems: list[PorosConfigError] = []
        self._roots: list[Any] = []
        self._take_by_event = {
            "ScalarEvent": self._take_scalar,
            "SequenceStartEvent": self._take_start,
            "MappingStartEvent": self._take_start,
            "SequenceEndEvent": self._take_end,
            "MappingEndEvent": self._take_end,
            "AliasEvent": self._take_alias,
            "DocumentStartEvent": self._take_document_start,
        }

    def take(self, event: Any) -> None:
        """Take the next event."""
        take = self._take_by_event.get(type(event).__name__)
        if take is not None:
            take(event)

    def document(self) -> Document:
        """The values, or all problems as one error."""
        if self._problems:
            raise PorosConfigError.of(self._problems)
        root = self._roots[0] if self._roots else None
        if root is None:
            raise PorosConfigError(
                "the config is empty", where=self._name, remediation="write at least dataset: PATH"
            )
        if not isinstance(root, dict):
            kind = "a list" if isinstance(root, list) else f"the value {str(root)[:40]!r}"
            raise PorosConfigError(
                f"the config is {kind}, not a mapping",
                where=self._name,
                remediation="write lines of the form key: value",
            )
        return Document(root, self._places)

    def _place(self, event: Any) -> str:
        return f"{self._name}:{event.start_mark.line + 1}:{event.start_mark.column + 1}"

    def _refuse(self, event: Any, message: str, remediation: str) -> None:
        problem = PorosConfigError(message, where=self._place(event), remediation=remediation)
        self._problems.append(problem)

    def _take_document_start(self, event: Any) -> None:
        if self._roots:
            self._refuse(event, "a second document in the config", "keep one document, without ---")
        if event.version not in (None, (1, 2)) or event.tags:
            self._refuse(event, "a YAML directive in the config", "delete the % line")

    def _take_alias(self, event: Any) -> None:
        self._refuse(event, f"alias *{event.anchor} in the config", "write the value out")
        self._add(event, None)

    def _take_scalar(self, event: Any) -> None:
        self._refuse_decoration(event)
        value: Any = event.value
        if event.style in (None, "") and not self._expects_key():
            try:
                value = scalar_value(value)
            except ValueError as error:
                self._refuse(event, str(error), "write a smaller number")
        elif any("\ud800" <= c <= "\udfff" for c in value):
            self._refuse(event, "half a surrogate pair in text", "write the character itself")
        self._add(event, value)

    def _take_start(self, event: Any) -> None:
        self._refuse_decoration(event)
        if len(self._open) >= MAX_DEPTH:
            raise PorosConfigError(
                f"nested deeper than {MAX_DEPTH} levels",
                where=self._place(event),
                remediation="a config is flat: key: value",
            )
        values: dict[str, Any] | list[Any]
        values = {} if type(event).__name__ == "MappingStartEvent" else []
        path = self._add(event, values)
        self._open.append(_Open(path, values))

    def _take_end(self, event: Any) -> None:
        self._open.pop()

    def _refuse_decoration(self, event: Any) -> None:
        if event.anchor is not None:
            self._refuse(event, f"anchor &{event.anchor} in the config", "delete it")
        if event.tag is not None:
            self._refuse(event, f"tag {event.tag} in the config", "delete it")

    def _expects_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].values, dict) and not self._has_key()

    def _has_key(self) -> bool:
        return self._open[-1].key is not None

    def _add(self, event: Any, value: Any) -> KeyPath:
        """Put a value where it belongs and return its path."""
        if not self._open:
            self._roots.append(value)
            return ()
        parent = self._open[-1]
        if isinstance(parent.values, list):
            path = (*parent.path, len(parent.values))
            parent.values.append(value)
            self._places[path] = self._place(event)
            return path
        if parent.key is None:
            return self._add_key(event, value, parent)
        path = (*parent.path, parent.key)
        parent.values.setdefault(parent.key, value)
        parent.key = None
        return path

    def _add_key(self, event: Any, key: Any, parent: _Open) -> KeyPath:
        if not isinstance(key, str):
            self._refuse(event, "a key that is not text", "write lines of the form key: value")
            key = f"{self._place(event)}"
        if key in parent.seen:
            self._refuse(event, f"key {key!r} again, after {parent.seen[key]}", "keep one of them")
        parent.seen.setdefault(key, self._place(event))
        parent.key = key
        path = (*parent.path, key)
        self._places.setdefault(path, self._place(event))
        return path
