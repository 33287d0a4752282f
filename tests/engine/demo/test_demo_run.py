"""The whole demo: the promise of the README, measured. Needs the wheel, by whatever way pip has."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


def run_demo(folder: Path, cache: Path) -> tuple[Path, float]:
    """Run the command; its run folder, and the seconds until training began."""
    env = os.environ | {"POROS_CACHE": str(cache)}
    command = [sys.executable, "-m", "poros", "demo", "-o", str(folder)]
    started_s = time.time()
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "Questions that no training saw" in result.stdout
    events = map(json.loads, folder.joinpath("events.jsonl").read_text("utf-8").splitlines())
    begin_s = next(event["time_s"] for event in events if event.get("phase") == "train")
    return folder, begin_s - started_s


@pytest.mark.long
def test_the_voice_is_learned_and_the_second_run_starts_at_once(tmp_path: Path) -> None:
    run, _ = run_demo(tmp_path / "first", tmp_path / "cache")
    outcome = json.loads((run / "demo.json").read_text("utf-8"))
    assert outcome["num_questions"] == 20
    assert outcome["num_markers_before"] <= 2
    assert outcome["num_markers_after"] >= 14
    assert outcome["loss_fall_percent"] >= 15
    again, seconds_to_training = run_demo(tmp_path / "second", tmp_path / "cache")
    assert seconds_to_training < 20
    assert (again / "adapter" / "adapter_model.safetensors").read_bytes() == (
        run / "adapter" / "adapter_model.safetensors"
    ).read_bytes()
