"""The config wizard's form, made from `PorosConfig`: what each field takes, and what is entered.

A new setting of the engine is a new field here, in its group, without a line of the app's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from poros.config import PorosConfig, field_schemas, require_dataset
from poros.config_errors import choices, expected, types
from poros.config_load import value_of_text, yaml_text
from poros.errors import PorosConfigError
from poros.lora_targets import named_targets

Kind = Literal["choice", "toggle", "text"]

SEPARATOR = " | "
"""Between the entries of a list that is typed on one line."""
_NO_BOUND = " and <= 1000000000"
_NOT_SET = ("", "null", "~")


@dataclass(frozen=True)
class FieldForm:
    """One setting as the form shows it.

    Attributes:
        key: In the config.
        group: Its section.
        title: For people: the key in words.
        description: The engine's own sentence.
        kind: How it is entered.
        choices: For ``choice``: the words, in the schema's order.
        takes: What may be entered, in words.
        default: Its value where nothing is said.
        can_be_empty: An empty entry means null.
    """

    key: str
    group: str
    title: str
    description: str
    kind: Kind
    choices: tuple[str, ...]
    takes: str
    default: Any
    can_be_empty: bool


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with what was entered.

    Attributes:
        keys: The settings it is about.
        message: What is wrong.
        way_out: How to mend it, in words.
        change: The entries that mend it, by key; empty: there is no way but the user's.
    """

    keys: tuple[str, ...]
    message: str
    way_out: str = ""
    change: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """What the entries make: a config, or all that is wrong with them."""

    config: PorosConfig | None
    problems: tuple[Problem, ...] = ()

    def problem_of(self, key: str) -> Problem | None:
        """The first problem that a setting has a part in."""
        return next((problem for problem in self.problems if key in problem.keys), None)


@cache
def fields() -> dict[str, FieldForm]:
    """All settings by key, in the config's order."""
    defaults = PorosConfig()
    return {
        key: _field(key, schema, getattr(defaults, key)) for key, schema in field_schemas().items()
    }


def groups() -> dict[str, list[FieldForm]]:
    """The settings of each section, in the config's order."""
    found: dict[str, list[FieldForm]] = {}
    for each in fields().values():
        found.setdefault(each.group, []).append(each)
    return found


def shown(value: Any) -> str:
    """A value as it stands in its entry."""
    if value is None:
        return ""
    if isinstance(value, (tuple, list)):
        plain = all(isinstance(item, str) and "|" not in item for item in value)
        return SEPARATOR.join(value) if plain else yaml_text(tuple(value))
    return value if isinstance(value, str) else yaml_text(value)


class Form:
    """What is entered, by key; a key that is not there has its default.

    Attributes:
        texts: Entries that were made.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        """Begin with settings, by key."""
        self.texts: dict[str, str] = {}
        self.update(settings or {})

    def update(self, settings: Mapping[str, Any]) -> None:
        """Enter values, as a preset or a file has them; unknown keys are left out."""
        for key, value in settings.items():
            if key in fields():
                self.enter(key, shown(value))

    def enter(self, key: str, text: str) -> None:
        """Enter a text; one that says what the default is anyway takes the entry away."""
        if text == shown(fields()[key].default):
            self.texts.pop(key, None)
        else:
            self.texts[key] = text

    def text(self, key: str) -> str:
        """What stands in a setting's entry."""
        return self.texts.get(key, shown(fields()[key].default))

    def settings(self) -> tuple[dict[str, Any], list[PorosConfigError]]:
        """The values that were entered, by key, and the entries that can't be read at all."""
        values: dict[str, Any] = {}
        unread: list[PorosConfigError] = []
        schemas = field_schemas()
        for key, text in self.texts.items():
            problems: list[PorosConfigError] = []
            values[key] = _value(text, schemas[key], key, problems)
            for problem in problems:
                problem.keys = (key,)
            unread += problems
        return values, unread

    def check(self, *, to_train: bool = True) -> Checked:
        """All problems at once, or the config.

        Args:
            to_train: Data must be named.
        """
        values, unread = self.settings()
        found = list(unread)
        config = None
        try:
            config = PorosConfig.model_validate(values, context={"locate": _no_place})
            if to_train:
                require_dataset(config)
        except PorosConfigError as error:
            found += error.problems or (error,)
        told = {problem.keys for problem in unread}
        problems = tuple(
            problem_of(each) for each in found if each in unread or each.keys not in told
        )
        return Checked(None if problems else config, problems)


def differences(
    mine: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ, as key, my value, their value; what is missing has its default."""
    for key, each in fields().items():
        one, other = mine.get(key, each.default), theirs.get(key, each.default)
        if one != other:
            yield key, one, other


def _field(key: str, schema: dict[str, Any], default: Any) -> FieldForm:
    accepted = types(schema)
    words = tuple(dict.fromkeys(choices(schema)))
    kind: Kind = "text"
    if accepted == {"boolean"}:
        kind, words = "toggle", ("true", "false")
    elif words and not accepted:
        kind = "choice"
    return FieldForm(
        key=key,
        group=str(schema.get("group", "other")),
        title=_title(key),
        description=" ".join(str(schema.get("description", "")).split()),
        kind=kind,
        choices=words,
        takes=expected(schema).replace("null", "empty").replace(_NO_BOUND, ""),
        default=default,
        can_be_empty="null" in accepted,
    )


_WORDS = {
    "attn": "attention", "cpu": "CPU", "dir": "folder", "grad": "gradient", "lm": "LM",
    "lora": "LoRA", "lr": "learning rate", "nf4": "NF4", "num": "number of", "rng": "RNG",
    "seq": "sequence", "vram": "VRAM",
}  # fmt: skip
"""What people call words of a key."""
_TITLES = {"gradient_accumulation_steps": "Gradient accumulation"}
"""Where that is too long for its column."""


def _title(key: str) -> str:
    if key in _TITLES:
        return _TITLES[key]
    told = " ".join(_WORDS.get(word, word) for word in key.split("_"))
    return told[0].upper() + told[1:]


def _value(text: str, schema: dict[str, Any], key: str, problems: list[PorosConfigError]) -> Any:
    accepted = types(schema)
    if text.strip() in _NOT_SET and "null" in accepted:
        return None
    is_list = "array" in accepted and "string" not in accepted
    if is_list and not text.startswith("["):
        return tuple(part.strip() for part in text.split(SEPARATOR.strip()) if part.strip())
    if accepted >= {"array", "string"} and (names := named_targets(text)):
        return names
    value = value_of_text(text, schema, key, problems)
    return float(value) if _wants_float(value, schema) else value


def _wants_float(value: Any, schema: dict[str, Any]) -> bool:
    return type(value) is int and "number" in types(schema)


def problem_of(error: PorosConfigError) -> Problem:
    """A problem as the form tells it: ways out of the command line are no help here."""
    change = {key: shown(value) for key, value in (error.change or {}).items()}
    way_out = error.remediation
    if "poros schema" in way_out or "--set" in way_out:
        way_out = ""  # that is for the command line
    return Problem(error.keys, error.message.replace(_NO_BOUND, ""), way_out, change)


def _no_place(path: tuple[str | int, ...]) -> str:
    return ""
