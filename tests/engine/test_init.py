"""`poros init`: a config to start from."""

import json

import pytest

from poros.config import PorosConfig, field_schemas
from poros.config_load import load_config
from poros.errors import PorosConfigError
from poros.init_file import model_sizes, render, schedule_for, size_for
from tests.engine.command_line import poros_here
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers

GB = 10**9


@pytest.fixture(autouse=True)
def _nobody_is_asked(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    folder = write_headers(tmp_path_factory.mktemp("m") / "qwen", QWEN_7B, qwen_tensors(QWEN_7B))
    found, note = model_sizes(str(folder))
    assert note == ""
    return found


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n')
    return str(path)


def test_the_text_is_read_back_as_the_settings(tmp_path):
    settings = {"model_name_or_path": "a: b # c", "dataset": "d.jsonl", "lora_rank": 4}
    path = tmp_path / "x.yaml"
    path.write_text(render(settings, ["a\nline"]))
    loaded = load_config(path, environ={})
    assert loaded.config == PorosConfig(**settings)
    given = {key for key, origin in loaded.origins.items() if origin != "default"}
    assert given == set(settings)


def test_every_key_stands_there_with_its_meaning():
    text = render({}, [])
    for key, schema in field_schemas().items():
        assert f"\n# {key}: " in text
        assert f"# {schema['description']}" in text


def test_each_commented_line_is_right_once_its_mark_is_taken_off(tmp_path):
    lines = render({}, []).splitlines()
    keys = tuple(f"# {key}: " for key in field_schemas())
    path = tmp_path / "x.yaml"
    path.write_text("\n".join(line[2:] if line.startswith(keys) else line for line in lines))
    assert load_config(path, environ={}).config == PorosConfig()


def test_wrong_settings_are_not_written():
    with pytest.raises(PorosConfigError):
        render({"lora_rank": 0}, [])


def test_a_larger_card_takes_larger_micro_batches_of_the_same_step(sizes):
    small, large = (size_for(sizes, room * GB).settings for room in (6, 80))
    for settings in (small, large):
        step = settings["per_device_batch_size"] * settings["gradient_accumulation_steps"]
        assert step == 8
    assert small["max_seq_length"] <= large["max_seq_length"] == 2048
    assert small["per_device_batch_size"] < large["per_device_batch_size"]


def test_a_card_that_holds_nothing_is_told(sizes):
    [note] = size_for(sizes, GB // 10).notes
    assert "poros check" in note


def test_without_a_card_or_sizes_the_note_says_so(sizes):
    assert "CPU" in size_for(sizes, None).notes[0]
    assert size_for(None, 8 * GB).settings == {}


def test_a_model_that_is_not_here_is_no_error(tmp_path, data):
    path = tmp_path / "x.yaml"
    answer = json.loads(poros_here("init", str(path), "-m", "a/b", "-d", data, "--json").stdout)
    assert "hf download a/b" in answer["notes"][-1]
    assert load_config(path, environ={}).config.model_name_or_path == "a/b"


def test_a_file_that_is_there_stays(tmp_path, data):
    path = tmp_path / "x.yaml"
    path.write_text("mine")
    done = poros_here("init", str(path), "-m", "a/b", "-d", data)
    assert (done.returncode, path.read_text()) == (7, "mine")
    assert poros_here("init", str(path), "-m", "a/b", "-d", data, "--force").returncode == 0
    assert path.read_text() != "mine"


def test_a_missing_data_file_is_told_before_anything_is_written(tmp_path):
    done = poros_here("init", str(tmp_path / "x.yaml"), "-m", "a/b", "-d", "no.jsonl")
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_gets_a_warm_up_that_fits(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' * 201)
    assert schedule_for(str(path)).settings == {"warmup_steps": 2}
    assert schedule_for(str(path)).notes == [
        "201 rows, each seen once, are 26 optimizer steps, 2 of them to warm up"
    ]
    path.write_text('{"text": "a"}\n' * 40)
    assert schedule_for(str(path)).settings == {"warmup_steps": 2, "num_epochs": 4}
    path.write_text('{"text": "a"}\n')
    assert schedule_for(str(path)).settings == {"warmup_steps": 1, "num_epochs": 10}
    path.write_text('{"text": "a"}\n' * 8000)
    assert schedule_for(str(path)).settings == {}
    assert schedule_for("owner/name").settings == {}
    path.write_text("")
    ended = poros_here("init", str(tmp_path / "x.yaml"), "-m", "a/b", "-d", str(path))
    assert (ended.returncode, "no rows" in ended.stderr) == (3, True)
    assert not (tmp_path / "x.yaml").exists()


def test_rows_of_no_shape_are_told_and_leave_no_word_in_the_file(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "a", "reply": "b"}\n')
    path = tmp_path / "x.yaml"
    ended = poros_here("init", str(path), "-m", "a/b", "-d", str(tmp_path / "rows.jsonl"))
    assert ended.returncode == 0
    assert (
        "not to be trained on yet: Poros knows no rows with the columns question, reply"
        in ended.stdout
    )
    assert "rename question to prompt" in ended.stdout
    assert "rename question" not in path.read_text()


def test_stdout_gets_the_text_alone(data):
    text = poros_here("init", "-", "-m", "a/b", "-d", data).stdout
    told = json.loads(poros_here("init", "-", "-m", "a/b", "-d", data, "--json").stdout)
    assert (told["yaml"], told["settings"]["dataset"]) == (text, data)
    assert text.startswith("# poros train FILE\n")
    assert "model_name_or_path: a/b\n" in text
