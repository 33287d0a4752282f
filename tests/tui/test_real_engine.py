"""The real engine through it all, on a tiny model: started, watched, killed, gone on with."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poros.event_log import read_events
from poros.events import CheckpointSaved, StepFinished
from poros_tui.engine.commands import Watch, order
from poros_tui.engine.follow import EventReader
from poros_tui.engine.process import engine_at, find_run, start_run
from tests.engine.training.tiny_run import results_of, tiny_settings, write_chat_model

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
APP = """
import sys, time
from pathlib import Path
from poros_tui.engine.process import start_run
print(start_run(Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


def wait_for(condition, limit_s=LIMIT_S):
    until_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.02)
    return found


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "engine"), str(ROOT)]))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = write_chat_model(tmp_path / "model")
    settings = tiny_settings(model, tmp_path) | {"max_steps": 30, "save_steps": 5}
    path = tmp_path / "train.yaml"
    path.write_text(json.dumps(settings))
    yield path
    engine_at(tmp_path / "out").kill()


def steps_of(folder):
    path = folder / "events.jsonl"
    found = read_events(path) if path.exists() else ()
    return [event.step for event in found if isinstance(event, StepFinished)]


def test_a_run_outlives_its_app_is_killed_and_goes_on_with_the_same_bits(config, monkeypatch):
    folder = config.parent / "out"
    whole = start_run(config, settings=[f"output_dir={config.parent / 'whole'}"])
    wait_for(lambda: whole.poll() == "ended")
    assert (whole.ending().status, whole.exit_code) == ("finished", 0)
    monkeypatch.setenv("POROS_FAILPOINT", "train.step:sleep=0.1")
    engine = left_by_its_app(config)
    reader, seen = EventReader(engine.events_path, every_s=0.02), []
    step = watched_paused_and_saved(engine, reader, seen)
    engine.kill()
    wait_for(lambda: engine.poll() == "ended", limit_s=3)
    assert engine.ending().status == "killed"
    assert any("steps, run folder" in line for line in engine.ending().log_lines)
    monkeypatch.delenv("POROS_FAILPOINT")
    assert gone_on_with(config) >= step
    assert results_of(folder) == results_of(config.parent / "whole")
    wait_for(lambda: read_through(reader, seen))
    assert [e.step for e in seen if isinstance(e, StepFinished)] == list(range(1, 31))
    reader.close()


def left_by_its_app(config):
    """A run whose app was killed; found as the one that goes on."""
    folder = config.parent / "out"
    with subprocess.Popen(
        [sys.executable, "-c", APP, str(config)], stdout=subprocess.PIPE, text=True
    ) as app:
        pid = int(app.stdout.readline())
        wait_for(lambda: steps_of(folder))
        app.kill()
    engine = find_run()
    assert (engine.folder, engine.pid, engine.poll()) == (folder, pid, "running")
    return engine


def watched_paused_and_saved(engine, reader, seen):
    """Two look on while it is told to pause, save and go on; the step that it saved."""
    watches = [Watch(engine.folder), Watch(engine.folder)]
    for watch in watches:
        assert len(wait_for(lambda watch=watch: watch.latest).blocks) == 2
    assert order(engine.folder, "pause").taken
    wait_for(lambda: watches[0].latest.phase == watches[1].latest.phase == "pause")
    assert order(engine.folder, "checkpoint").taken

    def saved():
        seen.extend(line.event for line in reader.drain().lines)
        return [event for event in seen if isinstance(event, CheckpointSaved)]

    step = wait_for(saved)[-1].step
    assert order(engine.folder, "resume").taken
    wait_for(lambda: steps_of(engine.folder)[-1] > step)
    for watch in watches:
        watch.close()
    return step


def gone_on_with(config):
    """Run the same config to its end without screens; the step after which it went on."""
    done = subprocess.run(
        [sys.executable, "-m", "poros_tui", "--no-ui", str(config), "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["event"] == "run_finished"
    return next(line["step"] for line in lines if line["event"] == "step_finished") - 1


def read_through(reader, seen):
    batch = reader.drain()
    if batch.restarted:
        seen.clear()
    seen.extend(line.event for line in batch.lines)
    return seen and seen[-1].name == "run_finished"
