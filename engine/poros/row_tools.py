"""What turns carry beside their text: tools on offer, calls of tools, their results, thinking.

Chat templates expect these in one form each, which is made here. It is a matter of wrapping only:
``{"type": "function", "function": {"name": ..., "arguments": {...}}}`` for a call, the same with
``parameters`` for a tool.
"""

from __future__ import annotations

from typing import Any

from poros.errors import PorosDataError
from poros.row_values import keys_of, text_of, wrong_type
from poros.rows import Row
from poros.strict_json import StrictJsonError, parse

Tool = dict[str, Any]
"""A function that the model may call: ``type`` and ``function`` with ``name`` and the rest."""

THINKING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Names under which data sets keep what the model thinks before it answers."""


def read_tools(row: Row) -> list[Tool]:
    """The tools on offer in a conversation: its key ``tools``, a list or the JSON text of one.

    Raises:
        PorosDataError: It is something else.
    """
    value = row.fields.get("tools")
    if value is None:
        return []
    return [_function(row, path, item) for path, item in _items(row, "tools", value)]


def turn_extras(row: Row, path: str, item: dict[str, Any], role: str) -> dict[str, Any]:
    """What a turn has beside role and content, under the names that chat templates know.

    Args:
        row: For errors.
        path: The turn's place in the row.
        item: The turn as read.
        role: Its role, by our name.

    Raises:
        PorosDataError: A value of another type, or one that no such turn can have.
    """
    if role == "assistant":
        return _thinking(row, path, item) | _tool_calls(row, path, item)
    for key in ("tool_calls", *THINKING_KEYS):
        if item.get(key) is not None:
            problem = f'key "{path}.{key}" is not supported in a turn of role {role}'
            raise PorosDataError(problem, where=row.where, remediation="remove it")
    if role != "tool":
        return {}
    named = ("name", "tool_call_id")
    return {k: text_of(row, f"{path}.{k}", item[k]) for k in named if item.get(k) is not None}


def _thinking(row: Row, path: str, item: dict[str, Any]) -> dict[str, Any]:
    given = {key: item[key] for key in THINKING_KEYS if item.get(key) is not None}
    if len(given) > 1:
        problem = f'"{path}" has {" and ".join(given)}, which mean the same'
        raise PorosDataError(problem, where=row.where, remediation="keep one of them")
    for key, value in given.items():
        if text_of(row, f"{path}.{key}", value).strip():
            return {"reasoning_content": value}
    return {}


def _tool_calls(row: Row, path: str, item: dict[str, Any]) -> dict[str, Any]:
    value = item.get("tool_calls")
    if value is None:
        return {}
    calls = []
    for at, given in _items(row, f"{path}.tool_calls", value):
        call = _function(row, at, given)
        function = call["function"]
        inside = f"{at}.function.arguments" if "function" in given else f"{at}.arguments"
        function["arguments"] = _arguments(row, inside, function.get("arguments"))
        calls.append(call)
    return {"tool_calls": calls} if calls else {}


def _items(row: Row, path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, str):
        value = _json(row, path, value)
    if not isinstance(value, list):
        raise wrong_type(row, path, value, "a list, or the JSON text of one")
    return [(f"{path}[{i}]", item) for i, item in enumerate(value)]


def _function(row: Row, path: str, item: Any) -> dict[str, Any]:
    """``item`` with its function under ``function``, where most data have it already."""
    if not isinstance(item, dict):
        raise wrong_type(row, path, item, "an object")
    if "function" not in item:
        item = {"type": "function", "function": item}
    function = item["function"]
    if not isinstance(function, dict):
        raise wrong_type(row, f"{path}.function", function, "an object")
    if "name" not in function:
        problem = f'key "{path}" has no name of a function (keys found: {keys_of(function)})'
        remedy = 'write {"type": "function", "function": {"name": ...}}'
        raise PorosDataError(problem, where=row.where, remediation=remedy)
    text_of(row, f"{path}.name", function["name"])
    return {"type": "function", **item, "function": dict(function)}


def _arguments(row: Row, path: str, value: Any) -> dict[str, Any]:
    """An object; OpenAI's form of it is the JSON text of one, empty where there are none."""
    if isinstance(value, str):
        value = _json(row, path, value) if value.strip() else {}
    if value is None:
        return {}
    if isinstance(value, dict):
        return dict(value)
    raise wrong_type(row, path, value, "an object, or the JSON text of one")


def _json(row: Row, path: str, text: str) -> Any:
    try:
        return parse(text)
    except StrictJsonError as error:
        raise PorosDataError(
            f'key "{path}": not JSON: {error.problem} (character {error.offset + 1})',
            where=row.where,
            remediation="mend the text, or write the value itself in place of its text",
        ) from None
