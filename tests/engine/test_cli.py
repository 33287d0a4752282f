import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poros._version import __version__
from poros.cli_guard import BROKEN_PIPE
from tests.engine.command_line import poros_here
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers
from tests.engine.processor_time import quickest_s

ROOT = Path(__file__).parents[2]


def poros(*arguments: str, module: str = "poros", **environ: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT / "engine"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path} | environ,
    )


@pytest.fixture
def config(tmp_path):
    write_headers(tmp_path / "model", QWEN_7B, qwen_tensors(QWEN_7B))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 3)
    path = tmp_path / "train.yaml"
    path.write_text(
        f"dataset: {tmp_path}/rows.jsonl\nseed: 3\n"
        f"model_name_or_path: {tmp_path}/model\noutput_dir: {tmp_path}/out\n"
    )
    return path


@pytest.fixture
def no_torch(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )


@pytest.mark.alone
def test_help_is_quick_and_imports_nothing_heavy():
    probe = (
        "import runpy, sys\n"
        "sys.argv = ['poros', '--help']\n"
        "try:\n    runpy.run_module('poros', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'peft', 'bitsandbytes', 'pydantic', 'textual'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    path = os.pathsep.join([str(ROOT / "engine"), str(ROOT)])

    def command():
        done = subprocess.run(
            [sys.executable, "-c", probe],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONPATH": path},
        )
        assert done.stderr.strip() == "[]"

    assert quickest_s(command, below_s=0.4) < 0.4


@pytest.mark.parametrize("module", ["poros", "poros_tui"])
def test_version(module):
    assert __version__ in poros("--version", module=module).stdout


def test_schema_is_json_on_stdout():
    assert "learning_rate" in json.loads(poros("schema").stdout)["properties"]


def test_exit_codes_are_listed_from_the_error_tree():
    lines = poros_here("help", "exit-codes").stdout.splitlines()
    codes = [int(line.split()[0]) for line in lines]
    assert codes == [*range(14), 129, 130, 141, 143]


@pytest.mark.usefixtures("no_torch")
def test_a_dry_run_says_where_each_value_came_from(config):
    done = poros_here(
        "train", str(config), "--dry-run", "--set", "lora_rank=4", POROS_LORA_ALPHA="8"
    )
    assert done.returncode == 0
    assert f"seed: 3  ({config}:2:1)" in done.stdout
    assert "lora_rank: 4  (--set lora_rank)" in done.stdout
    assert "lora_alpha: 8  (POROS_LORA_ALPHA)" in done.stdout


@pytest.mark.usefixtures("no_torch")
def test_a_dry_run_without_torch_looks_at_folder_model_and_rows(config, tmp_path):
    lines = poros_here("train", str(config), "--dry-run").stdout.splitlines()
    assert f"output: {tmp_path}/out, a new folder" in lines
    assert any(line.startswith(f"model:  {tmp_path}/model: qwen2, certified") for line in lines)
    assert f"data:   {tmp_path}/rows.jsonl: 3 rows, not tokenised" in "\n".join(lines)
    assert lines[-1].startswith(f"{config} is valid")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_torch")
def test_a_dry_run_tells_all_that_stands_in_the_way(config, tmp_path):
    wrong = ["model_name_or_path=/no/model", "dataset=no.jsonl", "output_dir=/no/parent/out"]
    settings = [word for each in wrong for word in ("--set", each)]
    done = poros_here("train", str(config), "--dry-run", *settings)
    codes = [line.split()[1] for line in done.stderr.splitlines()]
    assert (done.returncode, codes) == (
        7,
        ["error[E-output]:", "error[E-model]:", "error[E-data]:"],
    )
    record = json.loads(poros_here("train", str(config), "--dry-run", "--json", *settings).stdout)
    assert [problem["exit_code"] for problem in record["problems"]] == [7, 4, 3]


@pytest.mark.parametrize(
    ("word", "code", "told"),
    [
        ("output_dir=no/where", 7, "the output folder's parent is missing, no/where"),
        ("resume=no/checkpoint", 6, "no such checkpoint, no/checkpoint"),
    ],
)
def test_a_place_that_is_wrong_is_told_before_libraries_are_read(
    config, monkeypatch, word, code, told
):
    monkeypatch.setattr("poros.cli_train.call_engine", lambda *words, **named: 0)
    ended = poros_here("train", str(config), "--set", word)
    assert (ended.returncode, told in ended.stderr) == (code, True)
    assert poros_here("train", str(config)).returncode == 0


@pytest.mark.usefixtures("no_torch")
def test_a_dry_run_as_json(config):
    done = poros_here("train", str(config), "--dry-run", "--json", "--device", "cpu")
    checked = json.loads(done.stdout)
    assert checked["config"]["device"] == "cpu"
    assert checked["origins"]["device"] == "--device"
    assert checked["looked_at"]["data"]["num_rows"] == 3
    assert checked["problems"] == []


@pytest.mark.usefixtures("no_torch")
def test_no_ui_is_the_same_command(config):
    arguments = (str(config), "--dry-run", "--set", "seed=4")
    with_ui_command = poros_here("--no-ui", *arguments, module="poros_tui")
    assert with_ui_command.stdout == poros_here("train", *arguments).stdout
    assert with_ui_command.returncode == 0


def test_without_a_terminal_a_config_is_trained_without_screens(config):
    done = poros_here(str(config), "--ui", module="poros_tui")
    assert done.returncode == 2
    assert done.stderr == (
        "poros: error[E-config]: no screens here: stdin is no terminal -> run it in a terminal\n"
    )
    done = poros_here(module="poros_tui")
    assert done.returncode == 2
    assert done.stderr.endswith("-> give a config: poros-tui --no-ui train.yaml\n")


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_each_config_problem_is_a_line_on_stderr(tmp_path, flags):
    path = tmp_path / "train.yaml"
    path.write_text("dataset: a\nseed: x\nlora_rnk: 3\n")
    done = poros_here("train", str(path), *flags)
    assert done.returncode == 2
    assert [line.partition(": ")[2][:15] for line in done.stderr.splitlines()] == [
        "error[E-config]"
    ] * 2
    assert list(tmp_path.iterdir()) == [path]
    if flags:
        assert json.loads(done.stdout)["code"] == "E-config"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train"],
        ["train", "x.yaml", "--colour"],
        ["nonsense"],
        ["parity"],
        ["parity", "--demo", "--shape", "qwen2.5-7b"],
        ["parity", "--demo", "--cap-gb", "4"],
        ["parity", "train.yaml", "--num-layers", "2"],
        ["help", "nonsense"],
        ["train", "no/such.yaml"],
        ["train", "."],
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments):
    done = poros_here(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("poros: error[E-config]: ")
    assert done.stderr.count("\n") == 1


def test_training_without_a_dataset_says_what_to_add(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("seed: 1\n")
    done = poros_here("train", str(path))
    assert done.returncode == 2
    assert "dataset is missing" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["runs"], ["cache"]])
def test_a_group_alone_shows_its_help(arguments):
    done = poros_here(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Usage: {' '.join(['poros', *arguments])} [OPTIONS] COMMAND")
    assert "\n  ls" in done.stderr or "\n  list" in done.stderr or "\n  train" in done.stderr
    assert "error" not in done.stderr


def test_a_missing_argument_with_choices_is_one_line():
    done = poros_here("completion")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Choose from: bash, fish, zsh" in done.stderr


def test_a_full_stdout_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "poros", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT / "engine")},
        )
    assert done.returncode == 8
    assert done.stderr.startswith("poros: error[E-storage]: stdout can't be written")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_is_quiet():
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "poros", "schema"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT / "engine")},
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["check", "/no/such/model"], 4),
        (["init", "{here}/x.yaml", "-m", "a", "-d", "no.jsonl"], 3),
        (["runs", "show", "no-such-run"], 2),
        (["runs", "rm"], 2),
        (["cache", "rm", "nothing"], 2),
        (["cache", "prune"], 2),
        (["report", "no-such-run"], 2),
        (["leaderboard", "no-such-folder"], 2),
        (["export", "no-such-run", "-o", "{here}/merged"], 2),
        (["generate", "no-such-run", "-p", "x"], 2),
        (["parity", "no.yaml"], 2),
        (["help", "nonsense"], 2),
        (["runs", "list", "--colour"], 2),
    ],
)
def test_an_error_of_a_json_command_is_one_json_document(arguments, code, tmp_path):
    words = [word.format(here=tmp_path) for word in arguments]
    done = poros_here(*words, "--json")
    assert done.returncode == code
    record = json.loads(done.stdout)["error"]
    assert (record["exit_code"], done.stdout.count("\n")) == (code, 1)
    assert set(record) >= {"type", "code", "message", "where", "remediation", "doc_url"}
    assert record["message"] in done.stderr


def test_an_error_before_a_run_is_one_event_where_events_are_printed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "poros.training.session", None)
    monkeypatch.setattr("poros.cli_guard._TRAIN_PACKAGES", {"poros"})
    path = tmp_path / "train.yaml"
    path.write_text("dataset: a\n")
    done = poros_here("train", str(path), "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["event"] == "run_failed"
    # A line that can't be parsed is no run.
    assert "error" in json.loads(poros_here("train", "--colour", "--json").stdout)


def test_data_in_place_of_a_config_are_told_as_that(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "a", "completion": "b"}\n' * 2)
    done = poros_here("train", str(path))
    assert done.returncode == 2
    assert f"-> name it in one: poros init train.yaml -m MODEL -d {path}" in done.stderr
