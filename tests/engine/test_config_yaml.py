import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poros.config_yaml import MAX_BYTES, parse_document, read_document, scalar_value
from poros.errors import PorosConfigError
from tests.engine.config_lines import lines_from


def refusal(text: str) -> str:
    with pytest.raises(PorosConfigError) as caught:
        parse_document(text, name="x.yaml")
    return "\n".join(caught.value.lines())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1e-4", 1e-4),
        ("no", "no"),
        ("on", "on"),
        ("12:30:45", "12:30:45"),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("2026-01-01", "2026-01-01"),
        ("1_000", "1_000"),
        ("~", None),
        ("", None),
        ("TRUE", True),
        ("-.inf", -math.inf),
        ("1e999", math.inf),
    ],
)
def test_plain_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    assert repr(scalar_value(text)) == repr(value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: 1\nb: 2\na: 3\n", "key 'a' again, after x.yaml:1:1, x.yaml:3:1"),
        ("a: &x 1\n", "anchor &x in the config, x.yaml:1:4"),
        ("a: 1\nb: *x\n", "alias *x in the config, x.yaml:2:4"),
        ("a: !!python/object:os.system x\n", "python/object:os.system in the config, x.yaml:1:4"),
        ("a:\n\tb: 1\n", "a tab where YAML wants spaces): 'b: 1', x.yaml:2:1"),
        ("a: [1\n", "expected ',' or ']'"),
        ("a: b: c\n", "mapping values are not allowed here): 'a: b: c', x.yaml:1:5"),
        ("ab: \0\n", "NUL in the config, x.yaml:1:5"),
        ("a: 1\nb: \x1b[31m\n", "control character U+001B in the config, x.yaml:2:4"),
        ("", "the config is empty, x.yaml"),
        ("# only a comment\n", "the config is empty"),
        ("- a\n", "the config is a list, not a mapping"),
        ("text\n", "the config is the value 'text', not a mapping"),
        ("a: " + "[" * 20_000, "nested deeper than 64 levels, x.yaml:1:67"),
        ("a: 1\n---\nb: 1\n", "a second document in the config, x.yaml:2:1"),
        ("%YAML 1.1\n---\na: 1\n", "a YAML directive"),
        ("? [a]\n: 1\n", "a key that is not text, x.yaml:1:3"),
        ('a: "\\ud800"\n', "half a surrogate pair in text"),
        ("a: " + "9" * 5000, "a number of 5000 digits"),
    ],
)
def test_a_trap_is_refused_with_its_place(text, part):
    assert part in refusal(text)


def test_all_refusals_come_at_once():
    assert len(refusal("a: &x 1\na: 2\nc: *x\n").splitlines()) == 3


def test_an_alias_bomb_is_refused_without_being_expanded():
    bomb = "a: &a [x, x]\n" + "".join(
        f"b{i}: &b{i} [*a, *a, *a, *a, *a, *a, *a, *a]\n" for i in range(30)
    )
    assert "alias *a in the config" in refusal(bomb)


def test_every_value_knows_its_line_and_column():
    document = parse_document("a: 1\nb: [x, y]\n", name="x.yaml")
    assert document.places[("b",)] == "x.yaml:2:1"
    assert document.places[("b", 1)] == "x.yaml:2:8"


def test_a_byte_order_mark_is_accepted(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(path).values == {"a": 1}


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"a: 1\nb: \xe9\n", "byte 0xe9 is not UTF-8, "),
        (b"a: 1\n" * (MAX_BYTES // 5 + 1), "larger than 1000000 bytes"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, data, part):
    path = tmp_path / "x.yaml"
    path.write_bytes(data)
    with pytest.raises(PorosConfigError, match=part):
        read_document(path)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    with pytest.raises(PorosConfigError, match="No such file"):
        read_document(tmp_path / "none.yaml")
    with pytest.raises(PorosConfigError, match="is a folder"):
        read_document(tmp_path)


yaml_like = st.text(
    st.sampled_from(list("ab01:- ,[]{}&*!|>'\"#%@`?~\n\t\r.e+\\u\0\ud7ff\u2028\ufeff"))
)


@settings(max_examples=300)
@given(st.one_of(st.text(), yaml_like))
def test_no_text_gets_past_the_reader_as_anything_but_values_or_a_config_error(text):
    lines = lines_from(lambda: parse_document(text, name="x.yaml").values.items())
    assert all(line.isprintable() for line in lines)
