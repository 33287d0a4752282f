"""The shapes that rows of training data come in, found by their keys and read without converting.

The first row that has a known shape decides for the file; a row that drifts from it is refused
with its line, its key, the type found and the type expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poros.errors import PorosDataError
from poros.row_tools import turn_extras
from poros.row_values import keys_of, text_of, wrong_type
from poros.rows import Row, type_name

Message = dict[str, Any]
"""``role`` (system, user, assistant or tool) and ``content``, both text.

Beside them, of the assistant, ``reasoning_content`` (text) and ``tool_calls``; of a tool, ``name``
and ``tool_call_id``.
"""


@dataclass(frozen=True, slots=True)
class RowShape:
    """One way to write a training example.

    Args:
        name: The word that reports use.
        required: Keys that every row has.
        optional: Keys that belong to the shape and may be absent.
        roles: Names of the roles, where rows carry them, and ours for each.
    """

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    roles: tuple[tuple[str, str], ...] = ()

    @property
    def is_conversation(self) -> bool:
        """Whether rows are turns, which the chat template renders."""
        return self.name != "text"


_ROLES = tuple((role, role) for role in ("system", "user", "assistant", "tool"))
_SHAREGPT_ROLES = (("system", "system"), ("human", "user"), ("gpt", "assistant"))

SHAPES = (
    RowShape("messages", ("messages",), roles=_ROLES),
    RowShape("sharegpt", ("conversations",), roles=_SHAREGPT_ROLES + _ROLES[1:]),
    RowShape("alpaca", ("instruction", "output"), ("input",)),
    RowShape("prompt_completion", ("prompt", "completion")),
    RowShape("text", ("text",)),
)
"""In this order, since data sets of turns often carry ``text`` or ``prompt`` beside them."""

_OTHER_NAMES = (
    {"messages": ("conversation", "chat", "dialog", "dialogue", "turns", "history")},
    {
        "prompt": ("question", "query", "input", "instruction", "user", "q", "context"),
        "completion": ("answer", "response", "output", "reply", "assistant", "target", "a"),
    },
    {"text": ("content", "body", "sentence", "paragraph", "document", "passage")},
)
"""Names that people give to what a shape calls otherwise."""

_KNOWN = (
    "prompt and completion, or instruction and output; messages, a list of turns with role and"
    " content; conversations, turns with from and value; or text alone"
)
"""The shapes in words."""

# Each would change what is trained; leaving one out without a word would not be the user's data.
_UNSUPPORTED = ("function_call", "weight", "train")


def detect_shape(rows: Sequence[Row]) -> RowShape:
    """The shape of the first row that has one.

    Raises:
        PorosDataError: No row has a known shape.
    """
    for row in rows:
        shape = _shape_of(row)
        if shape is not None:
            return shape
    raise PorosDataError(
        f"Poros knows no rows with the columns {keys_of(rows[0].fields)}",
        where=rows[0].where,
        remediation=_renaming(rows[0].fields),
    )


def to_messages(row: Row, shape: RowShape) -> list[Message]:
    """The turns of a row whose shape is a conversation.

    Raises:
        PorosDataError: The row has another shape, or a value of another type.
    """
    _check_shape(row, shape)
    if shape.name == "messages":
        return _turns(row, "messages", "role", "content", shape)
    if shape.name == "sharegpt":
        return _turns(row, "conversations", "from", "value", shape)
    asked, answered = (text_of(row, key, row.fields[key]) for key in shape.required)
    extra = [text_of(row, key, row.fields[key]) for key in shape.optional if key in row.fields]
    question = "\n\n".join([asked, *(text for text in extra if text)])
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answered},
    ]


def to_text(row: Row, shape: RowShape) -> str:
    """The text of a row of plain text.

    Raises:
        PorosDataError: The row has another shape, or its text is something else.
    """
    _check_shape(row, shape)
    return text_of(row, "text", row.fields["text"])


def _renaming(fields: dict[str, Any]) -> str:
    """Which keys to rename to what, where their names say what they hold; else all shapes."""
    for shape_keys in _OTHER_NAMES:
        found = {
            key: [name for name in fields if name.lower() in (key, *others)]
            for key, others in shape_keys.items()
        }
        if all(len(names) == 1 for names in found.values()):
            pairs = [(names[0], key) for key, names in found.items() if names[0] != key]
            return "rename " + " and ".join(f"{name} to {key}" for name, key in pairs)
    return f"rename them (in CSV the first line, in JSON the keys) after what they hold: {_KNOWN}"


def _shape_of(row: Row) -> RowShape | None:
    fits = (shape for shape in SHAPES if all(key in row.fields for key in shape.required))
    return next(fits, None)


def _check_shape(row: Row, shape: RowShape) -> None:
    found = _shape_of(row)
    if found is shape:
        return
    if found is None:
        missing = next(key for key in shape.required if key not in row.fields)
        problem = f'key "{missing}" is missing, expected text (keys found: {keys_of(row.fields)})'
        if shape.roles:
            problem = problem.replace("expected text", "expected a list")
    else:
        problem = f"a row of shape {found.name} among rows of shape {shape.name}"
    raise PorosDataError(problem, where=row.where, remediation="keep one shape in one file")


def _turns(row: Row, key: str, role_key: str, text_key: str, shape: RowShape) -> list[Message]:
    items = row.fields[key]
    if not isinstance(items, list):
        raise wrong_type(row, key, items, "a list of messages")
    return [
        _turn(row, f"{key}[{i}]", item, role_key, text_key, shape) for i, item in enumerate(items)
    ]


def _turn(row: Row, path: str, item: Any, role_key: str, text_key: str, shape: RowShape) -> Message:
    if not isinstance(item, dict):
        raise wrong_type(row, path, item, "an object")
    _check_key(row, path, item, role_key)
    for key in _UNSUPPORTED:
        if item.get(key) is not None:
            problem = f'key "{path}.{key}" is not supported yet'
            raise PorosDataError(problem, where=row.where, remediation="remove it from the data")
    role = text_of(row, f"{path}.{role_key}", item[role_key])
    roles = dict(shape.roles)
    if role not in roles:
        problem = f'key "{path}.{role_key}": unknown role {role[:40]!r}'
        expected = f"expected one of {', '.join(roles)}"
        raise PorosDataError(
            f"{problem}, {expected}", where=row.where, remediation="rename the role"
        )
    extras = turn_extras(row, path, item, roles[role])
    # Who calls a tool need not say anything beside.
    if "tool_calls" in extras and item.get(text_key) is None:
        return {"role": roles[role], "content": "", **extras}
    _check_key(row, path, item, text_key)
    content = _content(row, f"{path}.{text_key}", item[text_key])
    return {"role": roles[role], "content": content, **extras}


def _check_key(row: Row, path: str, item: dict[str, Any], key: str) -> None:
    if key not in item:
        problem = f'key "{path}.{key}" is missing, expected text (keys found: {keys_of(item)})'
        raise PorosDataError(problem, where=row.where, remediation=f"add {key}")


def _content(row: Row, path: str, value: Any) -> str:
    """Text, or a list of text parts, which are one text after another."""
    if not isinstance(value, list):
        return text_of(row, path, value)
    parts = []
    for i, part in enumerate(value):
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else None
            found = f"a part of type {kind!r}" if kind is not None else type_name(part)
            problem = f'key "{path}[{i}]": found {found}, expected a part of type "text"'
            raise PorosDataError(problem, where=row.where, remediation="keep text parts only")
        parts.append(text_of(row, f"{path}[{i}].text", part.get("text")))
    return "".join(parts)
