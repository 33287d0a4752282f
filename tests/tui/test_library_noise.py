"""What libraries and children print: never on the screen, always in the run's log."""

import json
import os
import sys
import time

import pytest

from poros_tui.engine import process
from tests.engine.training.tiny_run import tiny_settings, write_chat_model
from tests.tui.pty_bench import ROOT, Terminal

NOISE = """
import os, subprocess, sys, threading, warnings

def noise():
    from tqdm import tqdm
    for _ in tqdm(range(3), desc="LEAK of tqdm"):
        pass
    warnings.warn("LEAK of warnings")
    subprocess.run(["sh", "-c", "echo LEAK of a child >&2"])
    os.write(2, b"LEAK of a descriptor\\n")
    print("LEAK of print", file=sys.stderr, flush=True)
    if "run" in sys.argv or sys.argv[0].endswith("stub_engine.py"):
        from transformers.utils import logging
        logging.get_logger("transformers.anything").warning("LEAK of transformers")

timer = threading.Timer(1.0, noise)
timer.daemon = True
timer.start()
"""
"""Python runs it as each process begins: the app, the engine, and the commands of screens."""
KINDS = ("tqdm", "warnings", "a child", "a descriptor", "print", "transformers")
START = """
from pathlib import Path
from poros_tui import app

mount = app.PorosApp.on_mount

def start_too(self):
    mount(self)
    self.run_worker(self.runs.start(Path("train.yaml")))

app.PorosApp.on_mount = start_too
from poros_tui.cli import main
main()
"""


def noisy(folder, path):
    """A PYTHONPATH on which all processes make noise."""
    place = folder / "noise"
    place.mkdir()
    (place / "sitecustomize.py").write_text(NOISE)
    return os.pathsep.join([str(place), *path])


def told_in(run_folder):
    """The kinds of noise that stand in the run's logs."""
    logs = [path.read_text("utf-8", "replace") for path in (run_folder / "logs").glob("std*.log")]
    return {kind for kind in KINDS if f"LEAK of {kind}" in "".join(logs)}


def test_what_libraries_print_in_the_engine_is_in_the_runs_log(tmp_path, monkeypatch):
    path = noisy(tmp_path, [str(ROOT / "engine"), str(ROOT)])
    monkeypatch.setattr(process, "PROGRAM", (sys.executable, "-m", "tests.tui.engine.stub_engine"))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    config = tmp_path / "train.yaml"
    settings = {"model_name_or_path": "m", "dataset": "d.jsonl", "max_steps": 10**6}
    config.write_text(json.dumps(settings | {"output_dir": str(tmp_path / "out")}))
    engine = process.start_run(config, environ=os.environ | {"PYTHONPATH": path})
    try:
        until_s = time.monotonic() + 60
        while told_in(tmp_path / "out") != set(KINDS):
            assert time.monotonic() < until_s, (told_in(tmp_path / "out"), engine.told())
            time.sleep(0.05)
    finally:
        engine.kill()
        while engine.poll() != "ended":
            time.sleep(0.02)
    assert "LEAK" not in (tmp_path / "out" / "events.jsonl").read_text()


@pytest.mark.long
def test_nothing_of_it_is_on_the_screen_of_the_app_that_started_the_run(tmp_path):
    model = write_chat_model(tmp_path / "model")
    settings = tiny_settings(model, tmp_path) | {"max_steps": 40}
    (tmp_path / "train.yaml").write_text(json.dumps(settings))
    path = noisy(tmp_path, [str(ROOT / "engine"), str(ROOT)])
    with Terminal(
        ["-c", START], home=tmp_path, program=[sys.executable], PYTHONPATH=path,
        POROS_FAILPOINT="train.step:sleep=0.1",
    ) as screen:  # fmt: skip
        screen.until_shown("Trained: 40 steps")
        for key in "1234567":
            screen.press(f"\x1b{key}" if key == "1" else key)
            screen.read(0.5)
        screen.press("\x1b")
        screen.read(1.0)
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored
        assert b"LEAK" not in screen.written
    assert told_in(tmp_path / "out") == set(KINDS)
    log = (tmp_path / "state" / "poros" / "app.log").read_text()
    assert {"LEAK of a child", "LEAK of a descriptor"} <= set(log.splitlines())
