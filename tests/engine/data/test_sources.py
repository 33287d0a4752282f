import os
import subprocess
import sys

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from poros.data.sources import read_dataset, read_source, synthetic_samples
from poros.errors import PorosConfigError, PorosDataError, PorosHubError
from poros.rows import BadLines


def read(name, split="train"):
    return read_source(str(name), split=split, bad_lines=BadLines())


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_parquet_rows_come_as_they_are_and_a_null_is_an_absent_key(tmp_path):
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "é"}]
    rows = [{"messages": turns, "id": 1}, {"messages": turns[:1], "id": None}]
    found = read(write_parquet(tmp_path / "data.parquet", rows))
    assert [row.fields for row in found] == [rows[0], {"messages": turns[:1]}]
    assert [row.line for row in found] == [1, 2]
    assert found[1].where == f"{tmp_path / 'data.parquet'}:2"


def test_a_null_inside_a_turn_is_an_absent_key_too(tmp_path):
    call = {"function": {"name": "f", "arguments": {"a": None, "b": [1, None]}}}
    turns = [{"role": "user", "content": "Q", "tool_calls": None},
             {"role": "assistant", "content": None, "tool_calls": [call]}]  # fmt: skip
    (row,) = read(write_parquet(tmp_path / "data.parquet", [{"messages": turns}]))
    asked, called = row.fields["messages"]
    assert asked == {"role": "user", "content": "Q"}
    assert called["tool_calls"] == [{"function": {"name": "f", "arguments": {"b": [1, None]}}}]
    assert "content" not in called


def test_an_empty_parquet_gives_no_rows(tmp_path):
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), path)
    assert read(path) == []


@pytest.mark.parametrize("damage", ["empty", "html", "cut", "flipped"])
def test_a_damaged_parquet_is_refused_by_name(tmp_path, damage):
    path = write_parquet(tmp_path / "data.parquet", [{"text": "a"}] * 10)
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "html": b"<html>404</html>",
        "cut": content[: len(content) // 2],
        "flipped": content[:-12] + b"\xff" * 8 + content[-4:],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(PorosDataError, match="not a readable Parquet file") as caught:
        read(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    "name",
    ["./absent", "/no/such/file", "~/absent.jsonl", "absent.jsonl", "a/b/c", "data.PARQUET", "a b"],
)
def test_what_looks_like_a_path_is_never_asked_of_the_hub(name):
    with pytest.raises(PorosDataError, match="no such data file"):
        read(name)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(PorosDataError, match="a folder"):
        read(tmp_path)


def test_a_data_set_is_read_by_name_config_and_split(monkeypatch):
    asked = []

    def load(name, config, *, split):
        asked.append((name, config, split))
        return datasets.Dataset.from_list([{"text": "a", "n": 1}, {"text": None, "n": 2}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    rows = read("someone/some-set:main", split="test")
    assert [(row.line, row.fields) for row in rows] == [(1, {"text": "a", "n": 1}), (2, {"n": 2})]
    assert rows[1].where == "someone/some-set:main[test]:2"
    read_dataset("plain", split="train")
    assert asked == [("someone/some-set", "main", "test"), ("plain", None, "train")]


@pytest.mark.parametrize(
    "fault",
    [
        datasets.exceptions.DatasetNotFoundError("gone"),
        ConnectionError("no route\nsecond line"),
        ValueError("Unknown split"),
        TimeoutError(),
    ],
    ids=range(4),
)
def test_faults_of_hub_and_network_are_one_error(monkeypatch, fault):
    def load(name, config, *, split):
        raise fault

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(PorosHubError, match="can't load the data set") as caught:
        read("someone/some-set")
    assert caught.value.exit_code == 5
    assert caught.value.where == "someone/some-set, split train"
    assert "second line" not in str(caught.value)


def test_offline_the_real_library_ends_in_the_same_error(tmp_path):
    program = (
        "from poros.data.sources import read_dataset\nfrom poros.errors import PorosHubError\n"
        "try:\n    read_dataset('nobody/no-set', split='train')\n"
        "except PorosHubError as error:\n    print(error.line())\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("poros: error[E-hub]: can't load the data set")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("synthetic", 256), ("synthetic:1", 1), ("synthetic:1000", 1000), ("synthetics", None),
     ("./synthetic", None), ("me/synthetic", None)],
)  # fmt: skip
def test_synthetic_data_is_asked_for_by_count(name, expected):
    assert synthetic_samples(name) == expected


@pytest.mark.parametrize(
    "count", ["", "0", "-5", "1.5", "1e3", "many", "\u0661", "1 ", "1\n", "9" * 10]
)
def test_a_wrong_count_is_refused(count):
    with pytest.raises(PorosConfigError, match="not a number of samples"):
        synthetic_samples(f"synthetic:{count}")
