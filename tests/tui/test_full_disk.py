"""App and engine outlive a disk without room, and say what is so."""

import contextlib
import subprocess
import sys

import pytest

from poros_tui.engine import process
from tests.tui.live_run import LiveRun, keep_below, wait_for
from tests.tui.pty_bench import Terminal

STUB = (sys.executable, "-m", "tests.tui.engine.stub_engine")


@pytest.fixture
def small_disk(tmp_path):
    command = ["mount", "-t", "tmpfs", "-o", "size=4M", "tmpfs", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a disk can't be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(folder):
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.fixture
def run(small_disk, monkeypatch):
    keep_below(small_disk, monkeypatch.setenv)
    monkeypatch.setattr(process, "PROGRAM", STUB)
    monkeypatch.chdir(small_disk)
    settings = {"dataset": "d", "output_dir": str(small_disk / "run"), "max_steps": 10**6}
    with LiveRun.at_work(small_disk / "train.yaml", settings) as run:
        yield run


TOLD = "can't write what it does: disk full"


@pytest.mark.long
def test_app_and_run_outlive_a_full_disk(small_disk, run):
    with Terminal(["attach", str(run.folder)], home=small_disk) as screen:
        screen.until_shown("learning rate")
        fill(small_disk)
        screen.until_shown(TOLD)
        for key, text in (("1", "Start the guided setup"), ("8", "1,000,000"), ("6", TOLD)):
            screen.press(key)
            screen.until_shown(text)
        (small_disk / "filler").unlink()
        screen.until(lambda: not is_shown(screen, TOLD), "the notice gone")
        run.wait_until_it_steps()
        assert run.engine.poll() == "running"


@pytest.mark.long
def test_how_a_run_ended_is_told_though_the_disk_is_full(small_disk, run):
    with Terminal(["attach", str(run.folder)], home=small_disk) as screen:
        screen.until_shown("learning rate")
        fill(small_disk)
        screen.until_shown(TOLD)
        screen.press("s")
        screen.until_shown("Stop and save")
        screen.press("s")
        wait_for(lambda: run.engine.poll() == "ended", "the run's end")
        screen.until_shown("Stopped")
        screen.press("q")
        assert screen.ended() == 0
        assert screen.is_restored
    assert (run.engine.ending().status, run.engine.ending().exit_code) == ("stopped", 0)


def is_shown(screen, text):
    return any(text in line for line in screen.screen())
