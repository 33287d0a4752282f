"""`poros data`: what is told of a file is what training makes of it."""

import json

import pytest
import torch

from poros.cli_data import bars, marked
from poros.data.samples import IGNORED
from poros.training import data_preview
from tests.engine.command_line import poros_here

ROWS = [
    {"prompt": "Who are you?", "completion": "A keeper."},
    {"prompt": "Who are you?", "completion": "A keeper."},
    {"prompt": "And\nthen?", "completion": "One more answer, of many words."},
    {"prompt": "Nothing", "completion": ""},
]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(autouse=True)
def _settings():
    yield
    torch.use_deterministic_algorithms(False)


def test_the_record_is_what_a_run_would_learn(data, chat_folder, monkeypatch):
    made = []
    load = data_preview.load_data
    monkeypatch.setattr(
        data_preview, "load_data", lambda *a, **k: made.append(load(*a, **k)) or made[0]
    )
    words = ("-m", str(chat_folder), "--line", "3", "--samples", "2", "--json")
    ended = poros_here("data", str(data), *words)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)
    assert [one["line"] for one in record["samples"]] == [1, 2]
    assert record["samples"][0]["pieces"] == record["samples"][1]["pieces"]
    [prepared] = made
    assert record["digest"] == prepared.digest
    assert record["shape"] == "prompt_completion"
    assert record["duplicates"] == [[2, 1]]
    assert record["lengths"] == sorted(map(len, prepared.samples))
    sample = next(s for s in prepared.samples if s.line == 3)
    texts = dict.fromkeys((False, True), "")
    for text, is_trained in record["sample"]["pieces"]:
        texts[is_trained] += text
    assert "many words" in texts[True]
    assert "many words" not in texts[False]
    assert "then?" in texts[False]
    trained = [token for token in sample.labels if token != IGNORED]
    assert record["num_label_tokens"] >= len(trained) > 0


def test_people_see_shape_losses_duplicates_lengths_and_the_trained_part(data, chat_folder):
    whole = poros_here("data", str(data), "-m", str(chat_folder), "--json")
    too_short = str(json.loads(whole.stdout)["lengths"][-1] - 2)
    ended = poros_here("data", str(data), "-m", str(chat_folder), "--seq-len", too_short)
    assert ended.returncode == 0, ended.stderr
    assert "prompt_completion: prompt is asked, completion is answered" in ended.stdout
    assert "1 sample is another once more: row 2 (as 1)" in ended.stdout
    assert "samples were cut" in ended.stdout
    assert f"max_seq_length is {too_short}" in ended.stdout
    assert "█" in ended.stdout
    assert "«" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["{data}", "-m", "{data}"], 4, "a file, not a folder"),
        (["missing.jsonl", "-m", "{model}"], 3, "missing.jsonl"),
        (["{data}", "-m", "{model}", "--line", "99"], 2, "row 99 is no sample"),
        (["owner/set"], 2, "data sets of the Hub are read by the train extra"),
    ],
)
def test_a_mistake_is_one_line(data, chat_folder, arguments, code, line):
    filled = [a.format(data=data, model=chat_folder) for a in arguments]
    ended = poros_here("data", *filled)
    assert ended.returncode == code, ended.stderr
    assert line in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


def test_bars_have_every_sample_once():
    assert bars([5]) == [f"up to {5:>6}  {'█' * 30} 1"]
    lengths = sorted([10, 11, 11, 12, 200, 201, 255])
    shown = bars(lengths)
    assert len(shown) == 8
    assert sum(int(bar.rsplit(" ", 1)[1]) for bar in shown) == len(lengths)
    assert f"up to {255:>6}" in shown[-1]


def test_a_long_sample_is_cut_and_drives_no_terminal():
    text = marked([("\x1b[2Jasked\n", False), ("a" * 3000, True)])
    assert "\x1b[2J" not in text
    assert "more characters" in text
    assert text.count("a" * 100) >= 10
