"""Faults 5 to 11: data that can't be trained on never reaches the model."""

import json

import pytest

from tests.faults.bench import Case, expect, refuse

GOOD = {"prompt": "what is 1?", "completion": "it is 1."}


def data(*lines, name="data.jsonl", **settings):
    """A data file of these lines, each an object or its bytes."""

    def plant(bench):
        raw = [json.dumps(s).encode() if isinstance(s, dict) else s for s in lines]
        (bench.folder / name).write_bytes(b"".join(line + b"\n" for line in raw))
        bench.settings |= {"dataset": name} | settings

    return plant


def without(what):
    def plant(bench):
        bench.data.unlink()
        if what == "folder":
            bench.data.mkdir()

    return plant


def turns(*roles, role="role", key="messages", text="content"):
    return {key: [{role: name, text: "some words"} for name in roles]}


def deep(levels):
    return b'{"prompt": "a", "completion": ' + b"[" * levels + b"]" * levels + b"}"


CASES = [
    Case(5, "a malformed line", data(GOOD, b'{"prompt" 1}'), 3, ("data.jsonl:2:11", "colon")),
    Case(5, "a truncated last line", data(GOOD, b'{"prompt": "a'), 3, (":2:12", "truncated")),
    Case(5, "two objects on a line", data(GOOD, b'{"a": 1} {"b": 2}'), 3, (":2:10", "second")),
    Case(5, "no object", data(GOOD, b"[1]"), 3, (":2:1", "expected an object, found a list")),
    Case(
        5,
        "control bytes in what is shown",
        data(GOOD, b'\x1b[2J{"a'),
        3,
        (":2:1", "begins: \\x1b[2J"),
    ),
    Case(
        5,
        "more than 100 bad lines to skip",
        data(GOOD, *[b"x"] * 101, on_bad_line="skip"),
        3,
        ("more than 100 bad lines", ":102:1"),
    ),
    Case(5, "a broken list", data(b"[", GOOD, b",{]", name="d.json"), 3, ("d.json:3:3",)),
    Case(5, "a CSV row of another width", data(b"text", b"a,b", name="d.csv"), 3, ("d.csv:2:1",)),
    Case(5, "a Parquet that is none", data(b"x", name="d.parquet"), 3, ("d.parquet", "Parquet")),
    Case(6, "latin-1", data(GOOD, b'{"prompt": "\xe9"}'), 3, (":2:13", "not UTF-8: byte 0xe9")),
    Case(6, "a NUL", data(GOOD, b'{"prompt": "\0"}'), 3, (":2:13", "NUL")),
    Case(6, "an escaped NUL", data(GOOD, b'{"prompt": "\\u0000"}'), 3, (":2:13", "NUL")),
    Case(6, "half a surrogate", data(GOOD, b'{"prompt": "\\ud800"}'), 3, (":2:13", "surrogate")),
    Case(6, "NaN", data(GOOD, b'{"prompt": NaN}'), 3, (":2:12", "NaN is not a JSON number")),
    Case(6, "Infinity", data(GOOD, b'{"prompt": -Infinity}'), 3, (":2:12", "-Infinity")),
    Case(6, "a key twice", data(GOOD, b'{"a": 1, "a": 2}'), 3, (":2:10", "'a' stands twice")),
    Case(6, "1e999", data(GOOD, b'{"a": 1e999}'), 3, (":2:7", "1e999 is too large")),
    Case(6, "deep nesting", data(GOOD, deep(100_000)), 3, (":2:", "deeper than 64")),
    Case(7, "no known keys", data({"question": "a"}), 3, (":1", "question", "prompt")),
    Case(7, "a missing key", data(GOOD, {"prompt": "a"}), 3, (":2", '"completion" is missing')),
    Case(7, "a null", data(GOOD, GOOD | {"prompt": None}), 3, (":2", "found null, expected text")),
    Case(7, "a number", data(GOOD, GOOD | {"prompt": 1}), 3, (":2", "found a number")),
    Case(7, "an object for text", data(GOOD, GOOD | {"prompt": {}}), 3, ("found an object",)),
    Case(7, "two shapes", data(GOOD, {"text": "a"}), 3, (":2", "shape text")),
    Case(
        7,
        "an image among the parts",
        data({"messages": [{"role": "user", "content": [{"type": "image"}]}]}),
        3,
        (":1", "content[0]", "'image'"),
    ),
    Case(
        7,
        "calls of tools",
        data({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}),
        3,
        (":1", "tool_calls"),
    ),
    Case(8, "an empty file", data(), 3, ("data.jsonl", "0 usable samples of 0 rows")),
    Case(8, "blank lines only", data(b"", b"  "), 3, ("0 usable samples of 0 rows",)),
    Case(8, "no file", without("file"), 3, ("data.jsonl", "no such data file")),
    Case(8, "a folder", without("folder"), 3, ("data.jsonl", "a folder")),
    Case(8, "an unknown suffix", data(GOOD, name="d.xlsx"), 3, ("d.xlsx", "unknown kind")),
    Case(8, "bad lines only", data(b"x", on_bad_line="skip"), 3, ("0 usable samples of 1",)),
    Case(9, "empty answers", data(GOOD | {"completion": " "}), 3, ("0 usable samples of 1",)),
    Case(9, "empty texts", data({"text": ""}), 3, ("0 usable samples of 1 rows", "empty")),
    Case(9, "no turns", data({"messages": []}), 3, ("0 usable samples of 1 rows",)),
    Case(
        10,
        "too long where that is an error",
        data(GOOD | {"completion": "x" * 100}, overlong="error"),
        3,
        ("data.jsonl:1", "more than max_seq_length 64"),
    ),
    Case(
        10,
        "all too long and dropped",
        data(GOOD | {"completion": "x" * 100}, overlong="drop"),
        3,
        ("0 usable samples of 1 rows", "overlong: truncate"),
    ),
    Case(
        11,
        "prompts that leave no room for answers",
        data(GOOD | {"prompt": "x" * 100}),
        3,
        ("0 usable samples of 1 rows", "raise max_seq_length"),
    ),
    Case(11, "no answer", data(turns("user")), 3, ("0 usable samples", "train_on: everything")),
    Case(11, "an unknown role", data(turns("user", "bot")), 3, (":1", "messages[1].role", "'bot'")),
    Case(
        11,
        "a turn of nobody",
        data(turns("human", "model", role="from", key="conversations", text="value")),
        3,
        ("conversations[1].from", "'model'", "gpt"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bad_data_are_one_line_and_nothing_is_made(case, bench):
    refuse(case, bench)


def test_held_out_data_are_checked_before_anything_is_made(bench):
    (bench.folder / "held.jsonl").write_text('{"prompt"\n')
    bench.settings["eval_dataset"] = "held.jsonl"
    with bench.unchanged():
        expect(bench.run(), 3, "held.jsonl:1:")


@pytest.mark.parametrize(("longest", "num_cut"), [(63, 0), (64, 0), (65, 1)])
def test_the_boundary_of_the_length_is_exact(bench, longest, num_cut):
    # With plain text the tokens are the bytes and the end.
    bench.data.write_text(json.dumps({"text": "x" * (longest - 1)}) + "\n")
    bench.settings |= {"max_steps": 1, "gradient_accumulation_steps": 1, "warmup_steps": 0}
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert f"{num_cut} cut, 0 left out" in ended.stdout


def test_rows_without_labels_are_counted_and_the_rest_is_trained(bench):
    rows = [GOOD, GOOD | {"prompt": "x" * 100}, GOOD | {"completion": ""}]
    bench.data.write_bytes(
        b"\xef\xbb\xbf" + "".join(json.dumps(r) + "\n" for r in rows).encode() + b"x\n"
    )
    bench.settings |= {"max_steps": 2, "on_bad_line": "skip"}
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert "1 samples of 4 rows" in ended.stdout
    assert "3 left out" in ended.stdout
    assert "loss 0.0000" not in ended.stdout
    assert "nan" not in ended.stdout


@pytest.mark.parametrize("line", ['{"prompt"', ""])
def test_an_empty_folder_and_a_finished_run_stay_as_they_are(bench, finished, line):
    bench.out.mkdir()
    for place in (bench, finished):
        place.data.write_text(f"{line}\n")
        with place.unchanged():
            expect(place.run(), 3)
    assert finished.checkpoints() == [4, 6]
