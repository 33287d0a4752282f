"""`poros data FILE` without a model: rows as they stand."""

import json

import pytest

from poros import data_raw
from tests.engine.command_line import poros_here


def write(folder, *rows, name="rows.jsonl"):
    path = folder / name
    path.write_text(
        "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    )
    return str(path)


def test_rows_have_their_fields_and_the_turns_they_would_be_read_as(tmp_path):
    row = {"instruction": "Add", "input": "1, 2", "output": "3"}
    found = data_raw.raw_rows(write(tmp_path, row, row))
    assert (found["shape"], found["num_rows"], found["problem"]) == ("alpaca", 2, None)
    assert found["rows"][0]["fields"] == row
    assert found["rows"][0]["turns"] == [
        {"role": "user", "text": "Add\n\n1, 2"},
        {"role": "assistant", "text": "3"},
    ]
    assert found["duplicates"] == [(2, 1)]
    assert found["keys"][0] == {"name": "instruction", "kinds": ["text"], "num_rows": 2}


def test_keys_of_no_shape_are_told_with_those_that_are_known(tmp_path):
    found = data_raw.raw_rows(write(tmp_path, {"ask": "a", "answer": "b"}))
    assert found["shape"] is None
    assert "the columns ask, answer" in found["problem"]
    assert "prompt and completion" in found["problem"]
    assert found["rows"][0]["turns"] is None


def test_rows_that_do_not_fit_the_shape_are_counted_and_the_first_is_named(tmp_path):
    path = write(tmp_path, {"text": "a"}, {"text": 5}, {"text": "b"}, {"txt": "c"})
    found = data_raw.raw_rows(path)
    assert found["num_unfit"] == 2
    assert f"{path}:2" in found["problem"]
    assert [row["turns"] is None for row in found["rows"]] == [False, True, False, True]


def test_of_a_large_file_the_first_rows_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(data_raw, "MOST_ROWS", 3)
    path = write(tmp_path, *[{"text": str(k)} for k in range(4)], "no JSON")
    found = data_raw.raw_rows(path)
    assert (found["num_rows"], found["is_cut"]) == (3, True)
    assert data_raw.raw_rows(write(tmp_path, {"text": "a"}, name="b.jsonl"))["is_cut"] is False


@pytest.mark.parametrize("name", ["owner/set", "rows.parquet", "imdb"])
@pytest.mark.parametrize("has_extra", [True, False])
def test_what_only_the_extra_reads_is_told_with_what_helps(tmp_path, monkeypatch, name, has_extra):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data_raw, "find_spec", lambda name: has_extra or None)
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    ended = poros_here("data", name)
    assert ended.returncode == 2
    assert ended.stderr.rstrip().endswith("name a model: --model")
    assert ("poros-tui[train]" in ended.stderr) == (not has_extra)


def test_the_command_shows_rows_to_people_and_json(tmp_path):
    path = write(tmp_path, {"prompt": "Who?\x1b", "completion": "A keeper."}, "broken")
    ended = poros_here("data", path, "--on-bad-line", "skip")
    assert "prompt_completion: prompt is asked" in ended.stdout
    assert " user  Who?\\x1b" in ended.stdout
    assert "left out" in ended.stdout
    record = json.loads(poros_here("data", path, "--on-bad-line", "skip", "--json").stdout)
    assert record["raw"] is True
    assert len(record["bad_lines"]) == 1
    refused = poros_here("data", path)
    assert refused.returncode == 3
    assert f"{path}:2" in refused.stderr
    empty = poros_here("data", write(tmp_path, name="e.jsonl"))
    assert "no rows" in empty.stderr


UNFIT = ({"text": "a"}, {"text": 5})


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize(
    ("rows", "policy", "code", "said"),
    [
        (({"ask": "a", "answer": "b"},), "error", 3, "the columns ask, answer"),
        (({"ask": "a", "answer": "b"},), "skip", 3, "the columns ask, answer"),
        (UNFIT, "error", 3, "rows.jsonl:2"),
        (UNFIT, "skip", 0, ""),
        ((UNFIT[1], UNFIT[1]), "skip", 3, "rows.jsonl:1"),
        ((UNFIT[0], *[UNFIT[1]] * 101), "skip", 3, "more than 100 bad lines"),
    ],
)
def test_rows_that_no_run_could_train_on_are_shown_and_end_as_a_run_does(
    rows, policy, code, said, flags, tmp_path
):
    path = write(tmp_path, *rows)
    ended = poros_here("data", path, "--on-bad-line", policy, *flags)
    assert ended.returncode == code
    if flags:
        assert json.loads(ended.stdout)["num_rows"] == len(rows)
    else:
        assert f"rows  {len(rows)}" in ended.stdout
    assert (("error[E-data]" in ended.stderr), said in ended.stderr) == (code == 3, True)
