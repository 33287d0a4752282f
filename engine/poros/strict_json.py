"""JSON as RFC 8259 has it and no more: every fault is refused at its character.

Python's own decoder takes NaN, keeps the last of two equal keys, turns 1e999 into infinity and lets
half of a surrogate pair through; each of these changes training data without a word.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any

MAX_DEPTH = 64
"""Brackets inside brackets; deeper text is an attack or a mistake, and recursion has an end."""

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_FORBIDDEN = re.compile("[\0\ud800-\udfff]")
_FAST = JSONDecoder()
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = (("true", True), ("false", False), ("null", None))
_NOT_NUMBERS = ("NaN", "nan", "Infinity", "-Infinity", "inf", "-inf")


class StrictJsonError(ValueError):
    """Text that is not strict JSON.

    Args:
        problem: What is wrong, without position.
        offset: Index of the character it is about.
    """

    def __init__(self, problem: str, offset: int) -> None:
        """Keep the position apart from the words: the reader knows line and column."""
        self.problem = problem
        self.offset = offset
        super().__init__(f"{problem} at {offset}")


def parse(text: str) -> Any:
    """The one value that the text holds.

    Raises:
        StrictJsonError: The text holds no value, more than one, or a broken one.
    """
    value, at = _value(text, _skip_space(text, 0), 0)
    at = _skip_space(text, at)
    if at < len(text):
        raise StrictJsonError(_surplus(text, at), at)
    return value


def parse_items(text: str) -> Iterator[tuple[int, Any]]:
    """Each element of the array that the text holds, with the offset of its first character.

    Raises:
        StrictJsonError: The text is not one array, or an element is broken.
    """
    at = _skip_space(text, 0)
    if not text.startswith("[", at):
        raise StrictJsonError("expected a list of rows that begins with [", at)
    at = _skip_space(text, at + 1)
    closed = text.startswith("]", at)
    at += closed
    while not closed:
        start = at
        value, at = _value(text, at, 1)
        yield start, value
        at, closed = _next_element(text, at, "]")
    at = _skip_space(text, at)
    if at < len(text):
        raise StrictJsonError(_surplus(text, at), at)


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None  # the pattern matches the empty string
    return match.end()


def _surplus(text: str, at: int) -> str:
    if text[at] in '{["':
        return "a second value after the first"
    return f"unexpected {text[at]!r} after the value"


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    first = text[at : at + 1]
    if first == '"':
        return _string(text, at)
    if first in ("{", "["):
        if depth >= MAX_DEPTH:
            raise StrictJsonError(f"nested deeper than {MAX_DEPTH} levels", at)
        return _object(text, at, depth) if first == "{" else _array(text, at, depth)
    for word, value in _WORDS:
        if text.startswith(word, at):
            return value, at + len(word)
    return _number(text, at)


def _number(text: str, at: int) -> tuple[int | float, int]:
    for word in _NOT_NUMBERS:
        if text.startswith(word, at):
            raise StrictJsonError(f"{word} is not a JSON number", at)
    match = _NUMBER.match(text, at)
    if match is None:
        raise StrictJsonError(_no_value(text, at), at)
    digits = match.group()
    try:
        number = float(digits) if match.group(1) or match.group(2) else int(digits)
    except ValueError:
        raise StrictJsonError("a number with too many digits", at) from None
    if isinstance(number, float) and not math.isfinite(number):
        raise StrictJsonError(f"the number {digits[:20]} is too large", at)
    return number, match.end()


def _no_value(text: str, at: int) -> str:
    if at >= len(text):
        return "the text ends where a value must stand (truncated?)"
    return f"expected a value, found {text[at]!r}"


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    fields: dict[str, Any] = {}
    at = _skip_space(text, at + 1)
    if text.startswith("}", at):
        return fields, at + 1
    closed = False
    while not closed:
        key_at = at
        if not text.startswith('"', at):
            raise StrictJsonError(_expected(text, at, "a key in double quotes"), at)
        key, at = _string(text, at)
        if key in fields:
            raise StrictJsonError(f"the key {key!r} stands twice", key_at)
        at = _skip_space(text, at)
        if not text.startswith(":", at):
            raise StrictJsonError(_expected(text, at, "a colon"), at)
        fields[key], at = _value(text, _skip_space(text, at + 1), depth + 1)
        at, closed = _next_element(text, at, "}")
    return fields, at


def _array(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _skip_space(text, at + 1)
    if text.startswith("]", at):
        return items, at + 1
    closed = False
    while not closed:
        item, at = _value(text, at, depth + 1)
        items.append(item)
        at, closed = _next_element(text, at, "]")
    return items, at


def _next_element(text: str, at: int, bracket: str) -> tuple[int, bool]:
    """Step over a comma or the closing bracket; true for the bracket."""
    at = _skip_space(text, at)
    if text.startswith(bracket, at):
        return at + 1, True
    if not text.startswith(",", at):
        raise StrictJsonError(_expected(text, at, f"a comma or {bracket}"), at)
    return _skip_space(text, at + 1), False


def _expected(text: str, at: int, what: str) -> str:
    found = "the end of the text (truncated?)" if at >= len(text) else repr(text[at])
    return f"expected {what}, found {found}"


def _string(text: str, at: int) -> tuple[str, int]:
    try:
        decoded, end = _FAST.raw_decode(text, at)
    except ValueError:
        return _string_by_character(text, at)
    # The fast decoder lets these through, and can't say where a fault is.
    return (decoded, end) if _FORBIDDEN.search(decoded) is None else _string_by_character(text, at)


def _string_by_character(text: str, at: int) -> tuple[str, int]:
    start = at
    at += 1
    parts: list[str] = []
    while True:
        plain = _PLAIN.match(text, at)
        assert plain is not None  # the pattern matches the empty string
        parts.append(plain.group())
        at = plain.end()
        stop = text[at : at + 1]
        if stop == '"':
            return "".join(parts), at + 1
        if stop != "\\":
            raise StrictJsonError(_bad_character(stop), at if stop else start)
        part, at = _escape(text, at)
        parts.append(part)


def _bad_character(stop: str) -> str:
    if not stop:
        return "the text ends inside this string (truncated?)"
    if stop == "\0":
        return "a NUL character"
    if stop < " ":
        return f"a control character {stop!r} inside a string"
    return f"half of a surrogate pair {stop!r}"


def _escape(text: str, at: int) -> tuple[str, int]:
    kind = text[at + 1 : at + 2]
    if kind in _ESCAPES:
        return _ESCAPES[kind], at + 2
    if kind != "u":
        raise StrictJsonError(f"an unknown escape {text[at : at + 2]!r}", at)
    unit = _code_unit(text, at)
    if unit == 0:
        raise StrictJsonError("a NUL character", at)
    if not 0xD800 <= unit <= 0xDFFF:
        return chr(unit), at + 6
    is_high = unit < 0xDC00
    low = _code_unit(text, at + 6) if is_high and text.startswith("\\u", at + 6) else 0
    if not 0xDC00 <= low <= 0xDFFF:
        raise StrictJsonError(f"half of a surrogate pair {text[at : at + 6]!r}", at)
    return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), at + 12


def _code_unit(text: str, at: int) -> int:
    match = _HEX4.match(text, at + 2)
    if match is None:
        raise StrictJsonError(f"an unknown escape {text[at : at + 6]!r}", at)
    return int(match.group(), 16)
