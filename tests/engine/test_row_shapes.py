import json

import pytest

from poros.errors import PorosDataError
from poros.row_shapes import detect_shape, to_messages, to_text
from poros.row_tools import read_tools
from poros.rows import Row


def rows(*fields):
    return [Row(10 + i, f, "data.jsonl") for i, f in enumerate(fields)]


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


ASKED = turns(("user", "Q"), ("assistant", "A"))

CONVERSATIONS = [
    ("alpaca", {"instruction": "Q", "input": "", "output": "A"}, ASKED),
    ("alpaca", {"instruction": "Q", "output": "A", "text": "### Q"}, ASKED),
    (
        "alpaca",
        {"instruction": "Q", "input": "I", "output": "A"},
        turns(("user", "Q\n\nI"), ("assistant", "A")),
    ),
    ("prompt_completion", {"prompt": "Q", "completion": "A", "id": 7}, ASKED),
    ("messages", {"messages": turns(("system", "S"), *[("user", "Q")]), "prompt": "Q"},
     turns(("system", "S"), ("user", "Q"))),
    (
        "messages",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"},
                                                   {"type": "text", "text": "!"}], "name": None}]},
        turns(("user", "Q!")),
    ),
    (
        "sharegpt",
        {"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Q"},
                           {"from": "gpt", "value": "A"}]},
        turns(("system", "S"), ("user", "Q"), ("assistant", "A")),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields", "expected"), CONVERSATIONS, ids=range(7))
def test_a_conversation_is_named_and_read(name, fields, expected):
    (row,) = rows(fields)
    shape = detect_shape([row])
    assert shape.name == name
    assert shape.is_conversation
    assert to_messages(row, shape) == expected


def test_plain_text_is_named_and_read():
    (row,) = rows({"text": "once", "meta": 5})
    shape = detect_shape([row])
    assert (shape.name, shape.is_conversation, to_text(row, shape)) == ("text", False, "once")


def test_unknown_keys_are_refused_with_the_known_shapes():
    with pytest.raises(PorosDataError, match="ask, answer") as caught:
        detect_shape(rows({"ask": "Q", "answer": "A"}))
    assert caught.value.where == "data.jsonl:10"
    assert "or instruction and output; messages" in caught.value.remediation


GOOD_ALPACA = {"instruction": "Q", "input": "", "output": "A"}
GOOD_MESSAGES = {"messages": ASKED}
DRIFTS = [
    (GOOD_ALPACA, {"instruction": "Q", "response": "A"}, '"output" is missing, expected text'),
    (GOOD_ALPACA, {}, r'"instruction" is missing, expected text \(keys found: none\)'),
    (GOOD_ALPACA, {"text": "Q"}, "shape text among rows of shape alpaca"),
    (GOOD_ALPACA, GOOD_ALPACA | {"output": None}, '"output": found null, expected text'),
    (GOOD_ALPACA, GOOD_ALPACA | {"output": 5}, '"output": found a number, expected text'),
    (GOOD_ALPACA, GOOD_ALPACA | {"output": True}, '"output": found a boolean, expected text'),
    (GOOD_ALPACA, GOOD_ALPACA | {"input": None}, '"input": found null, expected text'),
    (GOOD_ALPACA, GOOD_ALPACA | {"instruction": ["Q"]}, '"instruction": found a list, expected'),
    (GOOD_ALPACA, GOOD_ALPACA | {"output": {"a": 1}}, '"output": found an object, expected text'),
    ({"text": "a"}, {"text": 7}, '"text": found a number, expected text'),
    ({"text": "a"}, {"text": "a\0b"}, '"text": a NUL character'),
    ({"text": "a"}, {"txt": "a"}, '"text" is missing, expected text'),
    (GOOD_MESSAGES, {"messages": "hi"}, '"messages": found text, expected a list of messages'),
    (GOOD_MESSAGES, {"messages": ["hi"]}, r'"messages\[0\]": found text, expected an object'),
    (GOOD_MESSAGES, {"message": ASKED}, '"messages" is missing, expected a list'),
    (GOOD_MESSAGES, {"messages": [{"role": "user"}]}, r'"messages\[0\].content" is missing'),
    (GOOD_MESSAGES, {"messages": turns(("user", None))}, r'"messages\[0\].content": found null'),
    (GOOD_MESSAGES, {"messages": [*ASKED, *turns(("bot", "A"))]}, r'\[2\].role": unknown role'),
    (GOOD_MESSAGES, {"messages": turns(("user", ["a"]))}, r'content\[0\]": found text'),
    (GOOD_MESSAGES, {"messages": turns(("user", [{"type": "image"}]))}, "a part of type 'image'"),
    (GOOD_MESSAGES, {"messages": turns(("user", [{"type": "text"}]))}, r"text\": found null"),
    (GOOD_MESSAGES, {"messages": [ASKED[0] | {"tool_calls": [1]}]}, "is not supported"),
    (GOOD_MESSAGES, {"conversations": []}, "shape sharegpt among rows of shape messages"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "problem"), DRIFTS, ids=range(len(DRIFTS)))
def test_drift_is_refused_with_line_key_and_types(first, second, problem):
    good, bad = rows(first, second)
    shape = detect_shape([good, bad])
    read = to_messages if shape.is_conversation else to_text
    read(good, shape)
    with pytest.raises(PorosDataError, match=problem) as caught:
        read(bad, shape)
    assert caught.value.where == "data.jsonl:11"


def test_the_first_row_with_a_known_shape_decides():
    assert detect_shape(rows({"x": 1}, {"text": "a"})).name == "text"


CALL = {"type": "function", "id": "1", "function": {"name": "f", "arguments": {"a": 1}}}


def turn(**fields):
    return {"role": "assistant", "content": "A"} | fields


def read_turn(**fields):
    (row,) = rows({"messages": [turn(**fields)]})
    return to_messages(row, detect_shape([row]))[0]


@pytest.mark.parametrize(
    "given",
    [
        [CALL],
        json.dumps([CALL]),
        [CALL | {"function": {"name": "f", "arguments": '{"a": 1}'}}],
        [{"id": "1", "function": CALL["function"]}],
    ],
    ids=["object", "text", "arguments as text", "without type"],
)
def test_calls_of_tools_come_in_one_form(given):
    assert read_turn(tool_calls=given)["tool_calls"] == [CALL]


def test_a_call_may_be_bare_and_have_no_arguments():
    bare = {"type": "function", "function": {"name": "f", "arguments": {}}}
    for arguments in ({}, {"arguments": None}, {"arguments": ""}, {"arguments": " {} "}):
        assert read_turn(tool_calls=[{"name": "f"} | arguments])["tool_calls"] == [bare]


@pytest.mark.parametrize("content", [{"content": None}, {}])
def test_who_calls_a_tool_need_say_nothing(content):
    (row,) = rows({"messages": [{"role": "assistant", "tool_calls": [CALL]} | content]})
    assert to_messages(row, detect_shape([row]))[0]["content"] == ""


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thinking_has_one_name_and_none_where_it_is_blank(key):
    assert read_turn(**{key: "T"}) == turn(reasoning_content="T")
    assert read_turn(**{key: " \n"}) == turn()


def test_results_keep_their_name_and_call():
    result = {"role": "tool", "content": "21", "name": "f", "tool_call_id": "1"}
    (row,) = rows(
        {"messages": [result | {"id": 7}, {"role": "tool", "content": "22", "name": None}]}
    )
    assert to_messages(row, detect_shape([row])) == [result, {"role": "tool", "content": "22"}]


def test_tools_on_offer_come_in_one_form():
    function = {"name": "f", "parameters": {"type": "object"}}
    expected = [{"type": "function", "function": function}]
    for given in (expected, [function], json.dumps(expected), json.dumps([function])):
        assert read_tools(rows({"tools": given})[0]) == expected
    assert read_tools(rows({})[0]) == read_tools(rows({"tools": None})[0]) == []


BAD_CALLS = [
    ("f", r'"messages\[0\].tool_calls": not JSON: .*\(character 1\)'),
    ({"name": "f"}, r'tool_calls": found an object, expected a list, or the JSON text of one'),
    (["f"], r'tool_calls\[0\]": found text, expected an object'),
    ([{"function": "f"}], r'tool_calls\[0\].function": found text, expected an object'),
    ([{"arguments": {}}], r'tool_calls\[0\]" has no name of a function \(keys found: arguments'),
    ([{"name": 5}], r'tool_calls\[0\].name": found a number, expected text'),
    ([{"name": "f", "arguments": [1]}], r'\[0\].arguments": found a list, expected an object'),
    ([{"name": "f", "arguments": "[1]"}], r'\[0\].arguments": found a list, expected an object'),
    ([{"function": {"name": "f", "arguments": "{"}}], r'\[0\].function.arguments": not JSON'),
]


@pytest.mark.parametrize(("calls", "problem"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_bad_calls_are_refused_with_line_and_key(calls, problem):
    with pytest.raises(PorosDataError, match=problem) as caught:
        read_turn(tool_calls=calls)
    assert caught.value.where == "data.jsonl:10"


BAD_TURNS = [
    ({"role": "user", "thinking": "T"}, r'thinking" is not supported in a turn of role user'),
    ({"role": "tool", "tool_calls": [CALL]}, r'tool_calls" is not supported in a turn of role'),
    ({"role": "tool", "tool_call_id": 5}, r'tool_call_id": found a number, expected text'),
    ({"reasoning": "T", "thinking": "T"}, "reasoning and thinking, which mean the same"),
    ({"thinking": ["T"]}, r'"messages\[0\].thinking": found a list, expected text'),
    ({"content": None, "thinking": "T"}, r'"messages\[0\].content": found null, expected text'),
    ({"function_call": {"name": "f"}}, r'function_call" is not supported yet'),
]


@pytest.mark.parametrize(("fields", "problem"), BAD_TURNS, ids=range(len(BAD_TURNS)))
def test_what_a_turn_cannot_carry_is_refused(fields, problem):
    with pytest.raises(PorosDataError, match=problem):
        read_turn(**fields)


@pytest.mark.parametrize(
    ("fields", "way_out"),
    [
        ({"Question": "Q", "answer": "A", "id": 1}, "rename Question to prompt and answer to comp"),
        ({"prompt": "Q", "response": "A"}, "rename response to completion"),
        ({"dialogue": []}, "rename dialogue to messages"),
        ({"body": "T"}, "rename body to text"),
        (
            {"question": "Q", "query": "Q", "answer": "A"},
            "rename them (in CSV the first line, in JSON",
        ),
        ({"x": 1}, "rename them (in CSV the first line, in JSON"),
    ],
)
def test_keys_of_no_shape_are_told_which_to_rename(fields, way_out):
    with pytest.raises(PorosDataError, match="Poros knows no rows with the columns") as caught:
        detect_shape(rows(fields))
    assert caught.value.remediation.startswith(way_out)
