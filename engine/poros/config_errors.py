"""What is wrong with a config's values, in words: from pydantic's report to one line a problem."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pydantic import ValidationError

from poros.config_guesses import meant
from poros.config_yaml import KeyPath, scalar_value
from poros.errors import PorosConfigError
from poros.typed_sizes import in_gb, other_unit

Locate: TypeAlias = Callable[[KeyPath], str]

_BOUNDS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
}
_TYPES = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


def problems_of(
    error: ValidationError, properties: dict[str, Any], locate: Locate
) -> list[PorosConfigError]:
    """One error for each wrong key.

    Args:
        error: pydantic's report.
        properties: The JSON schema of each field.
        locate: Where a key path was given, for example ``train.yaml:3:1``.
    """
    problems: dict[str, PorosConfigError] = {}
    for detail in error.errors(include_url=False, include_context=False):
        key = str(detail["loc"][0]) if detail["loc"] else ""
        if key in problems:  # a field of several types reports once for each
            continue
        if key not in properties:
            problems[key] = unknown_key(key, properties, where=locate((key,)))
        else:
            problems[key] = _wrong_value(key, detail, properties[key], locate)
    return list(problems.values())


def unknown_key(key: str, known: Iterable[str], *, where: str) -> PorosConfigError:
    """The error about a key that no field has, with the nearest one that exists."""
    if not key:
        return PorosConfigError("the config is not a mapping", where=where)
    nearest = meant(key, known)
    remediation = f"did you mean {nearest}?" if nearest else "`poros schema` lists all keys"
    return PorosConfigError(f"unknown key {key!r}", where=where, remediation=remediation)


def expected(schema: dict[str, Any]) -> str:
    """What a field takes, in words: ``a whole number >= 1``, ``nf4, bf16 or fp16``."""
    if "expected" in schema:
        return str(schema["expected"])
    if "anyOf" in schema:
        return " or ".join(expected(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        *first, last = schema["enum"]
        return f"{', '.join(first)} or {last}" if first else str(last)
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"a list of {expected(schema['items'])}"
    kind = "non-empty text" if "minLength" in schema else _TYPES[schema["type"]]
    bounds = [f"{sign} {schema[bound]}" for bound, sign in _BOUNDS.items() if bound in schema]
    return f"{kind} {' and '.join(bounds)}".rstrip()


def choices(schema: dict[str, Any]) -> list[str]:
    """The words among which a field's value is chosen, for "did you mean"."""
    parts = schema.get("anyOf", [schema])
    return [word for part in parts for word in part.get("enum", [part.get("const")]) if word]


def types(schema: dict[str, Any]) -> set[str]:
    """The JSON types of a field; words to choose from are no ``string`` here."""
    parts = schema.get("anyOf", [schema])
    return {str(part.get("type")) for part in parts if "enum" not in part and "const" not in part}


def _wrong_value(key: str, detail: Any, schema: dict[str, Any], locate: Locate) -> PorosConfigError:
    value = detail["input"]
    path: KeyPath = tuple(part for part in detail["loc"] if isinstance(part, int))
    is_text = detail["type"] != "string_unicode"
    wanted = expected(schema) if is_text else "text that UTF-8 can write"
    error = PorosConfigError(
        f"{key} must be {wanted}, not {_shown(value)}",
        where=locate((key, *path)),
        remediation=_hint(value, schema),
    )
    error.keys, error.change = (key,), {key: _nearest(value, schema)}
    return error


def _nearest(value: Any, schema: dict[str, Any]) -> Any:
    """What was probably meant: the word that is nearest, the bound that was passed, the default."""
    if isinstance(value, str):
        return _nearest_to_text(value, schema)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for part in schema.get("anyOf", [schema]):
            if "minimum" in part and value < part["minimum"]:
                return part["minimum"]
            if "maximum" in part and value > part["maximum"]:
                return part["maximum"]
    return schema.get("default")


def _nearest_to_text(value: str, schema: dict[str, Any]) -> Any:
    if "unit" in schema and other_unit(value):
        return float(f"{in_gb(value):.6g}")
    if near := difflib.get_close_matches(value, choices(schema), n=1):
        return near[0]
    return scalar_value(value) if _is_quoted(value, schema) else schema.get("default")


def _hint(value: Any, schema: dict[str, Any]) -> str:
    if isinstance(value, str):
        if "unit" in schema and (told := other_unit(value)):
            return told
        nearest = difflib.get_close_matches(value, choices(schema), n=1)
        if nearest:
            return f"did you mean {nearest[0]}?"
        if _is_quoted(value, schema):
            return f"write {value} without quotes"
    elif "string" in types(schema) and not isinstance(value, (list, dict)):
        return "put it in quotes if it is meant as text"
    return "`poros schema` describes every key"


def _is_quoted(value: str, schema: dict[str, Any]) -> bool:
    try:
        plain = scalar_value(value)
    except ValueError:
        return False
    wanted = types(schema)
    if isinstance(plain, bool):
        return "boolean" in wanted
    if isinstance(plain, int):
        return bool(wanted & {"integer", "number"})
    return isinstance(plain, float) and "number" in wanted


def _shown(value: Any) -> str:
    """A value as YAML writes it, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    kind = "the text " if isinstance(value, str) else ""
    return kind + (text if len(text) <= 60 else text[:57] + "...")
