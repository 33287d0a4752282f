import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poros.strict_json import MAX_DEPTH, StrictJsonError, parse, parse_items

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text("abé\n\"\\"), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip

FAULTS = [
    # text, offset of the fault, words of the problem
    ('{"a": 1, "a": 2}', 9, "stands twice"),
    ('{"a": {"b": 1, "c": 2, "b": 3}}', 23, "'b' stands twice"),
    ('{"a": NaN}', 6, "NaN is not"),
    ('{"a": Infinity}', 6, "Infinity is not"),
    ('{"a": [1, -Infinity]}', 10, "-Infinity is not"),
    ('{"a": 1e999}', 6, "1e999 is too large"),
    ('{"a": -1e999}', 6, "too large"),
    ('{"a": ' + "9" * 5000 + "}", 6, "too many digits"),
    (r'{"a": "\ud83d"}', 7, "half of a surrogate pair"),
    (r'{"a": "x\ude00"}', 8, "half of a surrogate pair"),
    (r'{"a": "\ud83dA"}', 7, "half of a surrogate pair"),
    (r'{"a": "\u0000"}', 7, "NUL"),
    ('{"a": "\0"}', 7, "NUL"),
    ('{"a": "x\ty"}', 8, "control character"),
    (r'{"a": "\x41"}', 7, "unknown escape"),
    (r'{"a": "\u12"}', 7, "unknown escape"),
    ('{"a": 01}', 7, "expected a comma"),
    ('{"a": 1.}', 7, "expected a comma"),
    ('{"a": .5}', 6, "expected a value"),
    ('{"a": +5}', 6, "expected a value"),
    ("{'a': 5}", 1, "a key in double quotes"),
    ('{"a": 5,}', 8, "a key in double quotes"),
    ('{"a" 5}', 5, "a colon"),
    ("[1, 2", 5, "truncated"),
    ('{"a": ', 6, "truncated"),
    ('{"a": "abc', 6, "ends inside this string"),
    ('{"a": 1} {"b": 2}', 9, "a second value"),
    ('{"a": 1}, {"b": 2}', 8, "unexpected ','"),
    ('{"a": undefined}', 6, "expected a value"),
    ("[" * 100_000, MAX_DEPTH, "nested deeper"),
    ('{"a":' * 100, MAX_DEPTH * 5, "nested deeper"),
    ("", 0, "truncated"),
    ("\u0661", 0, "expected a value"),
]


@pytest.mark.parametrize(("text", "offset", "problem"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_is_refused_at_its_character(text, offset, problem):
    with pytest.raises(StrictJsonError) as caught:
        parse(text)
    assert caught.value.offset == offset
    assert problem in caught.value.problem


@settings(deadline=None)
@given(JSON_VALUES)
def test_what_json_writes_is_read_back(value):
    assert parse(json.dumps(value)) == value
    assert parse(json.dumps(value, ensure_ascii=False, indent=1)) == value


@settings(deadline=None)
@given(st.text('{}[]:,"\\0123456789.eE+-truefalsn ud8x\t', max_size=40))
def test_whatever_is_accepted_means_what_the_standard_decoder_says(text):
    try:
        value = parse(text)
    except StrictJsonError as error:
        offset = error.offset
    else:
        offset = 0
        assert value == json.loads(text)
    assert 0 <= offset <= len(text)


def test_the_deepest_allowed_text_is_read():
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH)


def test_the_items_of_a_list_come_with_their_offsets():
    assert list(parse_items(' [1, {"a": 2} ]\n')) == [(2, 1), (5, {"a": 2})]
    assert list(parse_items("[]")) == []


@pytest.mark.parametrize(
    ("text", "offset"), [("{}", 0), ("[1 2]", 3), ("[1] [2]", 4), ("[1,", 3), ("[1,]", 3), ("5", 0)]
)
def test_a_broken_list_is_refused_at_its_character(text, offset):
    with pytest.raises(StrictJsonError) as caught:
        list(parse_items(text))
    assert caught.value.offset == offset
