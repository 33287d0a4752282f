import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poros.errors import PorosDataError
from poros.rows import MAX_BAD_LINES, BadLines, read_rows, refuse_missing

GOOD = b'{"text": "one"}\n{"text": "two"}\n'

BAD_JSON_LINES = [
    # the third line of a file, the column of its fault, words of the problem
    (b'{"text": "a", "text": "b"}\n', 15, "stands twice"),
    (b'{"text": NaN}\n', 10, "NaN"),
    (b'{"text": 1e999}\n', 10, "too large"),
    (b'{"text": "\\ud800"}\n', 11, "surrogate"),
    (b'{"text": "a\x00b"}\n', 12, "NUL"),
    (b'{"text": "caf\xe9"}\n', 14, "not UTF-8: byte 0xe9"),
    (b"  {'text': 1}\n", 4, "double quotes"),
    (b"[" * 5000 + b"\n", 65, "nested deeper"),
    (b'{"text": "a"} {"text": "b"}\n', 15, "a second value"),
    (b'{"text": "trunc', 10, "truncated"),
    (b'["text"]\n', 1, "expected an object, found a list"),
    (b"null\n", 1, "expected an object, found null"),
    ('{"text": "é", "x": NaN}\n'.encode(), 20, "NaN"),
    ('\ufeff{"text": "late"}\n'.encode(), 1, "expected a value"),
    (b'\xff\xfe{\x00"\x00', 1, "not UTF-8"),
]


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def texts(rows):
    return [(row.line, row.fields) for row in rows]


@pytest.mark.parametrize(("line", "column", "problem"), BAD_JSON_LINES, ids=range(15))
def test_a_bad_line_is_named_with_line_and_column(tmp_path, line, column, problem):
    path = write(tmp_path, "data.jsonl", GOOD + line)
    with pytest.raises(PorosDataError) as caught:
        read_rows(path)
    assert caught.value.where == f"{path}:3:{column}"
    assert problem in caught.value.message
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("line", "column", "problem"), BAD_JSON_LINES, ids=range(15))
def test_a_bad_line_can_be_left_out_and_is_listed(tmp_path, line, column, problem):
    bad_lines = BadLines("skip")
    path = write(tmp_path, "data.jsonl", GOOD + line)
    assert texts(read_rows(path, bad_lines=bad_lines)) == [
        (1, {"text": "one"}),
        (2, {"text": "two"}),
    ]
    assert [error.where for error in bad_lines.found] == [f"{path}:3:{column}"]
    assert problem in bad_lines.found[0].message


def test_the_error_shows_the_first_80_characters_escaped(tmp_path):
    path = write(tmp_path, "data.jsonl", '{"text": "\x1b[31m\u202e' + "x" * 200 + '"} !\n')
    with pytest.raises(PorosDataError) as caught:
        read_rows(path)
    line = str(caught.value)
    assert line.isprintable()
    assert r"begins: {" in line
    assert "\\x1b[31m" in line
    assert 50 < line.count("x" * 10) * 10 <= 70


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_utf_16_is_told_once_for_the_whole_file(tmp_path, name, encoding):
    raw = '\ufeff{"text": "one"}\n'.encode(encoding)
    with pytest.raises(PorosDataError, match="UTF-16, and UTF-8 is wanted") as caught:
        read_rows(write(tmp_path, name, raw), "skip")
    assert "UTF-8" in caught.value.remediation


def test_a_pipe_is_no_data():
    with pytest.raises(PorosDataError, match="through a pipe"):
        refuse_missing("-")


def test_too_many_bad_lines_are_an_error_even_when_skipping(tmp_path):
    at_the_cap = write(tmp_path, "cap.jsonl", GOOD + b"bad\n" * MAX_BAD_LINES)
    assert len(read_rows(at_the_cap, "skip")) == 2
    over = write(tmp_path, "over.jsonl", GOOD + b"bad\n" * (MAX_BAD_LINES + 1))
    with pytest.raises(PorosDataError, match="more than 100 bad lines") as caught:
        read_rows(over, "skip")
    assert caught.value.where == f"{over}:103:1"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path, end):
    lines = ['\ufeff{"text": "one\u2028more"}', "", "  \t", '{"text": "two"}', ""]
    path = write(tmp_path, "data.jsonl", end.join(lines))
    assert texts(read_rows(path)) == [(1, {"text": "one\u2028more"}), (4, {"text": "two"})]
    assert read_rows(path)[1].where == f"{path}:4"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.ndjson"])
@pytest.mark.parametrize("content", ["", "\n \r\n\n", "\ufeff"])
def test_a_file_without_rows_gives_none(tmp_path, name, content):
    if name == "a.csv" and " " in content:
        content = "\n\r\n\n"  # in CSV a space is a value
    assert read_rows(write(tmp_path, name, content)) == []


def test_a_json_list_gives_its_objects_with_their_lines(tmp_path):
    content = '\ufeff[\n  {"text": "one"},\n  {\n    "text": "two"\n  }, {"text": "three"}\n]\n'
    rows = read_rows(write(tmp_path, "data.json", content))
    assert [row.line for row in rows] == [2, 3, 5]
    assert [row.fields["text"] for row in rows] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("content", "position", "problem"),
    [
        ('[\n{"text": "one"},\n{"text": NaN}]', "3:10", "NaN"),
        ('[{"text": "one"}\n{"text": "two"}]', "2:1", "expected a comma"),
        ('[{"text": "one"}]\n[]', "2:1", "a second value"),
        ('[{"text": "one"},\n  5]', "2:3", "expected an object, found a number"),
        ('"text"', "1:1", "expected a list of rows"),
        (b'[\n\n{"text": "\xff"}]', "3:11", "not UTF-8"),
        ('[{"text": "one"},\n{"text": "o', "2:10", "truncated"),
        ('{\n  "data": []\n}', "1:2", "truncated"),
    ],
)
def test_a_bad_json_list_is_named_with_line_and_column(tmp_path, content, position, problem):
    path = write(tmp_path, "data.json", content)
    with pytest.raises(PorosDataError) as caught:
        read_rows(path)
    assert caught.value.where == f"{path}:{position}"
    assert problem in caught.value.message


def test_an_element_that_is_no_object_can_be_left_out(tmp_path):
    rows = read_rows(write(tmp_path, "data.json", '[{"text": "one"}, 5, {"text": "two"}]'), "skip")
    assert [row.fields["text"] for row in rows] == ["one", "two"]


def test_json_lines_under_the_name_json_are_read(tmp_path):
    assert len(read_rows(write(tmp_path, "data.json", GOOD))) == 2


def test_csv_values_stay_text_and_rows_have_the_line_where_they_begin(tmp_path):
    long = "y" * 200_000
    content = f'\ufeffprompt,completion\r\n7,"a\r\nb"\r\n\r\nnull,{long}\r\n'
    rows = read_rows(write(tmp_path, "data.csv", content))
    assert texts(rows) == [
        (2, {"prompt": "7", "completion": "a\r\nb"}),
        (5, {"prompt": "null", "completion": long}),
    ]


@pytest.mark.parametrize(("sign", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_csv_that_is_parted_by_other_signs_is_told_so(tmp_path, sign, name):
    path = write(tmp_path, "data.csv", f"prompt{sign}completion\nWho?{sign}I\n".encode())
    with pytest.raises(PorosDataError, match=f"parted by {name}, not by commas") as caught:
        read_rows(path)
    assert caught.value.where == f"{path}:1"
    assert "with commas" in caught.value.remediation


@pytest.mark.parametrize(
    ("content", "position", "problem"),
    [
        ("text,text\na,b\n", "1:1", "repeated name"),
        ("text,\na,b\n", "1:1", "empty or a repeated name"),
        ("prompt,completion\na,b\nc\n", "3:1", "1 values under 2"),
        ("prompt,completion\na,b,c\n", "2:1", "3 values under 2"),
        ('text\n"a\n"b"c\n', "2:1", "not CSV"),
        ('text\nfine\n"open\n\n', "3:1", "not CSV"),
        ("text\na\0b\n", "2:2", "NUL"),
        (b"text\na\ncaf\xe9\n", "3:4", "not UTF-8"),
    ],
)
def test_bad_csv_is_named_with_its_line(tmp_path, content, position, problem):
    path = write(tmp_path, "data.csv", content)
    with pytest.raises(PorosDataError) as caught:
        read_rows(path)
    assert caught.value.where == f"{path}:{position}"
    assert problem in caught.value.message


def test_what_is_no_data_file_is_refused(tmp_path):
    for path, problem in [
        (tmp_path / "absent.jsonl", "no such data file"),
        (tmp_path, "a folder"),
        (write(tmp_path, "data.xlsx", ""), "unknown kind of data file '.xlsx'"),
        (write(tmp_path, "data", ""), "unknown kind of data file 'data'"),
    ]:
        with pytest.raises(PorosDataError, match=problem) as caught:
            read_rows(path)
        assert caught.value.where == str(path)


SEED_FILES = {
    "data.jsonl": b'\xef\xbb\xbf{"text": "\\u00e9\\ud83d\\ude00"}\n\n{"a": [1.5e3, null]}\r\n',
    "data.json": '[{"text": "one"},\n {"messages": [{"role": "é", "content": ""}]}]\n'.encode(),
    "data.csv": b'prompt,completion\r\n1,"a ""b""\r\nc"\r\nd,e\r\n',
}
INTERESTING = [b"\0", b"\xff", b'"', b"\n", b"{", b"}", b"[", b"\\u", b"\\", b"NaN", b"1e999", b","]


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32), skip=st.booleans())
def test_mutated_files_are_read_or_refused_with_their_place(tmp_path, seed, skip):
    rng = random.Random(seed)
    name, content = rng.choice(list(SEED_FILES.items()))
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(damaged) + 1)
        new = rng.choice([*INTERESTING, bytes([rng.randrange(256)]), b""])
        damaged[at : at + rng.randint(0, 3)] = new
    path = write(tmp_path, name, bytes(damaged))
    try:
        rows = read_rows(path, "skip" if skip else "error")
    except PorosDataError as error:
        where, shown = error.where, str(error)
    else:
        where, shown = f"{path}:", ""
        assert all(row.line >= 1 for row in rows)
        json.dumps([row.fields for row in rows], allow_nan=False).encode()
    assert where.startswith(f"{path}:")
    assert shown.isprintable()
