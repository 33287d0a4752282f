"""Runs without screens: what is printed, where signals go, what a kill leaves."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poros.event_log import read_lines
from poros_tui.engine import process
from poros_tui.engine.process import engine_at
from poros_tui.headless import _flags
from tests.engine.command_line import poros_here

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


class Bench:
    def __init__(self, folder):
        self.folder, self.run_folder = folder, folder / "run"
        self.environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "engine"), str(ROOT)]),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.config = folder / "train.yaml"
        settings = {"dataset": "d", "output_dir": str(self.run_folder), "max_steps": 3_000}
        self.config.write_text(json.dumps(settings))

    def start(self, *words, stdout=subprocess.PIPE, **environ):
        words = [str(self.config) if word == "CONFIG" else word for word in words]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.tui.without_screens", *words],
            stdout=stdout, stderr=subprocess.PIPE, text=True, env=self.environ | environ, cwd=ROOT,
        )  # fmt: skip

    def run(self, *words, **how):
        with self.start(*words, **how) as process:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
        return process.returncode, stdout or "", stderr

    def lines(self):
        with contextlib.suppress(OSError):
            return list(read_lines(self.run_folder / "events.jsonl"))
        return []

    def wait_for_steps(self, num=3):
        until_s = time.monotonic() + LIMIT_S
        while sum("step_finished" in line for line in self.lines()) < num:
            assert time.monotonic() < until_s, "no step"
            time.sleep(0.01)
        return engine_at(self.run_folder)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    engine_at(bench.run_folder).kill()


def test_a_run_prints_its_events_and_those_of_a_run_before_it_are_left_out(bench):
    code, stdout, stderr = bench.run("train", "CONFIG", "--json", "--set", "max_steps=4")
    assert (code, stderr) == (0, "")
    first = bench.lines()
    assert stdout == "".join(first)
    assert len(first) == 6
    code, stdout, stderr = bench.run("train", "CONFIG", "--set", "max_steps=2")
    assert (code, stderr) == (0, "")
    assert len(bench.lines()) == len(first) + 4
    assert stdout.splitlines()[0] == f"m on cpu: 2 steps, run folder {bench.run_folder}"
    assert "the adapter lies in adapter" in stdout
    assert "library" not in stdout
    assert "the library says something" in (bench.run_folder / "logs" / "stdout.log").read_text()


@pytest.mark.parametrize(
    ("number", "flags", "code"),
    [
        (signal.SIGINT, [], 130),
        pytest.param(signal.SIGTERM, [], 143, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, [], 129, marks=pytest.mark.long),
        (signal.SIGHUP, ["--survive-hangup"], 0),
    ],
)
def test_a_signal_is_the_engines_and_so_is_the_exit_code(bench, number, flags, code):
    with bench.start("train", "CONFIG", "--set", "max_steps=60", *flags) as process:
        bench.wait_for_steps()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (code, "")
    assert ("done: 60 steps" in stdout) == (code == 0)
    assert engine_at(bench.run_folder).poll() == "ended"


@pytest.mark.long
def test_a_run_waits_while_the_shell_has_taken_it_aside(bench):
    with bench.start("train", "CONFIG", "--set", "max_steps=60") as process:
        bench.wait_for_steps()
        process.send_signal(signal.SIGTSTP)
        until_s = time.monotonic() + LIMIT_S
        while not any('"pause"' in line for line in bench.lines()):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        num_lines = len(bench.lines())
        time.sleep(1)
        assert len(bench.lines()) == num_lines
        process.send_signal(signal.SIGCONT)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, stderr) == (0, "")
    assert "resume: going on" in stdout


@pytest.mark.parametrize(
    ("fault", "code", "flags"),
    [
        ("refused", 1, ["--json"]),
        pytest.param("refused", 1, [], marks=pytest.mark.long),
        pytest.param("failed", 12, ["--json"], marks=pytest.mark.long),
        pytest.param("failed", 12, [], marks=pytest.mark.long),
        pytest.param("crash", 134, [], marks=pytest.mark.long),
    ],
)
def test_an_engine_that_fails_is_told_in_one_line_with_its_code(bench, fault, code, flags):
    ended, stdout, stderr = bench.run("train", "CONFIG", *flags, STUB_FAULT=fault)
    words = {"refused": "nothing like that", "failed": "the loss is NaN", "crash": "SIGABRT"}[fault]
    assert ended == code
    if fault == "failed":  # the stub prints nothing, as its event says it all
        assert stderr == ""
    else:
        assert stderr.count("poros: error[") == stderr.count("\n") == 1
        assert words in stderr
    if flags:
        records = [json.loads(line) for line in stdout.splitlines()]
        assert (records[-1]["event"] == "run_failed") == (fault != "crash")


def test_killing_what_prints_leaves_the_run_and_one_can_attach_and_leave_again(bench):
    with bench.start("train", "CONFIG", "--set", "max_steps=150") as process:
        engine = bench.wait_for_steps()
        process.kill()
    assert engine.poll() == "running"
    with bench.start("attach") as looking:
        line = looking.stdout.readline()
        assert line.startswith("m on cpu: 150 steps")
        looking.send_signal(signal.SIGINT)
        _, stderr = looking.communicate(timeout=LIMIT_S)
    assert looking.returncode == 130
    assert f"the run goes on: poros-tui attach {bench.run_folder}" in stderr
    assert engine.poll() == "running"
    code, stdout, _ = bench.run("attach", str(bench.run_folder), "--json")
    assert code == 0
    assert stdout == "".join(bench.lines())
    code, stdout, _ = bench.run("attach")
    assert code == 0
    assert "done: 150 steps" in stdout


def test_an_engine_that_is_killed_is_told_soon_to_all_who_look(bench):
    with bench.start("train", "CONFIG") as process:
        engine = bench.wait_for_steps()
        with bench.start("attach") as looking:
            looking.stdout.readline()
            engine.kill()
            killed_s = time.monotonic()
            _, stderr = process.communicate(timeout=LIMIT_S)
            assert time.monotonic() - killed_s < 3
            _, looked = looking.communicate(timeout=LIMIT_S)
    assert process.returncode == 137
    assert "ended from outside, by SIGKILL" in stderr
    assert "without a word" in looked
    for text in (stderr, looked):
        assert text.count("\n") == 1
        assert "nothing was saved yet, so it begins anew" in text


@pytest.mark.long
def test_a_folder_that_another_run_has_is_refused_and_that_run_is_not_printed(bench):
    with bench.start("train", "CONFIG", "--set", "max_steps=200") as first:
        bench.wait_for_steps()
        code, stdout, stderr = bench.run("train", "CONFIG", "--json")
        assert code == 7
        assert "another run holds the output folder" in stderr
        assert [json.loads(line)["event"] for line in stdout.splitlines()] == ["run_failed"]
        first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0


@pytest.mark.long
def test_a_full_stdout_stops_nothing(bench):
    with Path("/dev/full").open("w") as full:
        code, _, stderr = bench.run("train", "CONFIG", "--set", "max_steps=5", stdout=full)
    assert (code, stderr) == (0, "")
    assert sum("step_finished" in line for line in bench.lines()) == 5


@pytest.fixture
def small_disk(bench):
    bench.run_folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(bench.run_folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a disk can't be mounted here")
    yield bench.run_folder
    engine_at(bench.run_folder).kill()
    subprocess.run(["umount", "-l", str(bench.run_folder)], check=True)


@pytest.mark.long
def test_a_disk_that_gets_full_stops_neither_the_engine_nor_who_looks(bench, small_disk):
    with bench.start("train", "CONFIG", "--set", "max_steps=600") as process:
        bench.wait_for_steps()
        with bench.start("attach") as looking:
            with contextlib.suppress(OSError):
                (small_disk / "filler").write_bytes(b"x" * (1 << 20))
            stdout, stderr = process.communicate(timeout=LIMIT_S)
            looked, seen = looking.communicate(timeout=LIMIT_S)
    num_told = sum("step_finished" in line for line in bench.lines())
    assert num_told < 600
    told = "poros: the run can't write what it does: disk full; it goes on, make room\n"
    assert (process.returncode, stderr, seen) == (0, told, told)
    assert "done: 600 steps" in stdout
    # The file has no room for it, but who only looks is told the end too.
    assert looking.returncode == 0
    assert "done: 600 steps" in looked
    assert engine_at(small_disk).ending().status == "finished"


def test_the_command_trains_in_an_engine_of_its_own(bench, monkeypatch):
    stub = (sys.executable, "-m", "tests.tui.engine.stub_engine")
    monkeypatch.setattr(process, "PROGRAM", stub)
    for name in ("PYTHONPATH", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, bench.environ[name])
    done = poros_here("--no-ui", str(bench.config), "--set", "max_steps=2", module="poros_tui")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("m on cpu: 2 steps")


@pytest.mark.long
def test_attaching_to_nothing_is_one_line(bench):
    code, stdout, stderr = bench.run("attach")
    assert (code, stdout) == (2, "")
    assert stderr.startswith("poros: error[E-config]: there is no run yet")


def test_options_become_the_words_that_gave_them():
    options = {"output_dir": "x y", "memory_map": True, "dry_run": False, "device": None}
    assert _flags(options) == ["--output-dir", "x y", "--memory-map"]
