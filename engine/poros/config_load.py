"""A run's config from its sources: flags over POROS_* variables over the YAML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros.config import ALIASES, PorosConfig, field_schemas
from poros.config_errors import types, unknown_key
from poros.config_yaml import Document, KeyPath, parse_document, read_document, scalar_value
from poros.errors import PorosConfigError, escape_control
from poros.variables import OTHERS, PREFIX, unread

_DATA_SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt")
_PLAIN = re.compile(r"[A-Za-z./][A-Za-z0-9_./-]*")


@dataclass(frozen=True)
class LoadedConfig:
    """A config, and where each of its values came from.

    Attributes:
        config: The settings.
        origins: By key: ``train.yaml:3:1``, ``POROS_SEED``, ``--set seed`` or ``default``.
    """

    config: PorosConfig
    origins: dict[str, str]


def load_config(
    path: Path | None = None,
    *,
    settings: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Read, merge and check a config.

    Args:
        path: The YAML file.
        settings: ``key=value`` texts of ``--set``.
        flags: Values of flags with a name of their own, by key; None where not given.
        environ: The environment; None is the process's own.

    Raises:
        PorosConfigError: Carries every problem at once, each with its place.
    """
    document = Document({}, {}) if path is None else _document(path)
    values = dict(document.values)
    origins: dict[str, str] = {}
    problems: list[PorosConfigError] = []
    sources = (
        _from_environment(os.environ if environ is None else environ, problems),
        _from_settings(settings, problems),
        _from_flags(flags or {}),
    )
    for source in sources:
        for key, value, origin in source:
            for alias in _aliases_of(key):
                values.pop(alias, None)
            values[key] = value
            origins[key] = origin

    def locate(key_path: KeyPath) -> str:
        key = str(key_path[0])
        if key in origins:
            return origins[key]
        names = [key_path, (key,), *((alias,) for alias in _aliases_of(key))]
        return next((document.places[name] for name in names if name in document.places), "")

    try:
        config = PorosConfig.model_validate(values, context={"locate": locate})
    except PorosConfigError as error:
        raise PorosConfigError.of([*problems, *(error.problems or (error,))]) from None
    if problems:
        raise PorosConfigError.of(problems)
    return LoadedConfig(config, {key: locate((key,)) or "default" for key in field_schemas()})


def dump_config(config: PorosConfig) -> str:
    """The config as YAML with every key, which `load_config` reads back as the same config."""
    lines: list[str] = []
    group = None
    for key, schema in field_schemas().items():
        if schema["group"] != group:
            group = schema["group"]
            lines.append(f"# {group}")
        lines.append(f"{key}: {yaml_text(getattr(config, key))}")
    return "\n".join(lines) + "\n"


def _document(path: Path) -> Document:
    """The file's content; data in its place are told as that, not as wrong YAML."""
    if path.suffix.lower() in _DATA_SUFFIXES and path.is_file():
        raise PorosConfigError(
            "training data, and a config is wanted here",
            where=escape_control(str(path)),
            remediation="name it in one: poros init train.yaml -m MODEL -d"
            f" {escape_control(str(path))}, then poros train train.yaml",
        )
    return read_document(path)


def _aliases_of(key: str) -> list[str]:
    return [alias for alias, name in ALIASES.items() if name == key]


def _from_environment(
    environ: Mapping[str, str], problems: list[PorosConfigError]
) -> Iterable[tuple[str, Any, str]]:
    known, misspelt = field_schemas(), unread(environ)
    for name in sorted(environ):
        key = name.removeprefix(PREFIX).lower()
        key = ALIASES.get(key, key)
        if not name.startswith(PREFIX) or name in OTHERS:
            continue
        if key in known:
            yield key, value_of_text(environ[name], known[key], name, problems), name
        elif misspelt.get(name):
            problems.append(
                PorosConfigError(
                    f"unknown variable {name}",
                    where="environment",
                    remediation=f"did you mean {misspelt[name]}?",
                )
            )


def _from_settings(
    settings: Sequence[str], problems: list[PorosConfigError]
) -> Iterable[tuple[str, Any, str]]:
    known = field_schemas()
    for setting in settings:
        key, equals, text = setting.partition("=")
        origin = f"--set {key}"
        key = ALIASES.get(key, key)
        if not equals:
            problems.append(
                PorosConfigError(
                    f"{setting!r} is not key=value", where="--set", remediation="write key=value"
                )
            )
        elif key not in known:
            problems.append(unknown_key(key, known, where="--set"))
        else:
            yield key, value_of_text(text, known[key], origin, problems), origin


def _from_flags(flags: Mapping[str, Any]) -> Iterable[tuple[str, Any, str]]:
    for key, value in flags.items():
        if value is not None:
            yield key, value, f"--{key.replace('_', '-')}"


def value_of_text(
    text: str, schema: dict[str, Any], origin: str, problems: list[PorosConfigError]
) -> Any:
    """The value of a text from outside YAML: verbatim for a field of text, else as YAML has it.

    Args:
        text: From a flag, a variable or an entry field.
        schema: Of the field, from `config.field_schemas`.
        origin: For messages.
        problems: What can't be read at all is added there.
    """
    accepted = types(schema)
    try:
        if "array" in accepted and text.startswith("["):
            return parse_document(f"value: {text}", name=origin).values["value"]
        value = scalar_value(text)
    except PorosConfigError as error:
        problems.extend(error.problems or (error,))
        return ()
    except ValueError:
        return text
    if value is None:
        return None if "null" in accepted else text
    return text if "string" in accepted else value


def yaml_text(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and scalar_value(value) == value
        return value if is_plain else _quoted(value)
    if isinstance(value, tuple):
        items = (_quoted(item) if isinstance(item, str) else yaml_text(item) for item in value)
        return f"[{', '.join(items)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else repr(value)


def _quoted(text: str) -> str:
    escaped = (c if c.isprintable() and c not in '"\\' else _escape(ord(c)) for c in text)
    return '"' + "".join(escaped) + '"'


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
