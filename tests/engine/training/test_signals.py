"""Real processes and real signals; tests/faults/test_signal_faults.py has what a fork can tell."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poros import events
from poros.config import PorosConfig
from poros.event_log import read_events
from poros.training.checkpoint import verify
from poros.training.session import Session
from tests.engine.training.tiny_run import tiny_settings

ROOT = Path(__file__).parents[3]

# A parent that ignores a signal, as nohup does.
IGNORING = (
    "import os, signal, sys; signal.signal(signal.Signals[sys.argv[1]], signal.SIG_IGN);"
    "os.execv(sys.executable, [sys.executable, '-m', 'poros', *sys.argv[2:]])"
)


@pytest.fixture
def settings(chat_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Slow enough steps for a signal to land in one of them.
    monkeypatch.setenv("POROS_FAILPOINT", "train.step:sleep=0.2")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "engine"), str(ROOT)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tiny_settings(chat_folder, tmp_path) | {"max_steps": 40, "save_steps": 100}


def start(settings, *flags, ignoring=None, **options):
    config = Path(settings["output_dir"]).parent / "train.yaml"
    config.write_text(json.dumps(settings))
    head = [sys.executable, "-m", "poros"]
    if ignoring:
        head = [sys.executable, "-c", IGNORING, ignoring]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen([*head, "train", str(config), *flags], **options)


def steps_of(settings):
    path = Path(settings["output_dir"]) / "events.jsonl"
    found = read_events(path) if path.exists() else ()
    return [event.step for event in found if isinstance(event, events.StepFinished)]


def wait_for_step(settings, process, step=2):
    while not steps_of(settings) or steps_of(settings)[-1] < step:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        # What is long in this file is sent to forked processes by tests/faults.
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_the_first_signal_finishes_the_step_and_saves(settings, number, code):
    with start(settings) as process:
        wait_for_step(settings, process)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    last = steps_of(settings)[-1]
    path = Path(settings["output_dir"]) / "checkpoints" / f"step-{last:06d}"
    assert verify(path).step == last
    assert f"saved step {last}; resume with the same command" in stdout
    assert last < 40


@pytest.mark.long
def test_an_inherited_ignore_stays_and_survive_hangup_ignores_sighup(settings):
    settings["max_steps"] = 6
    for flags, number, ignoring in (
        ((), signal.SIGHUP, "SIGHUP"),
        (("--survive-hangup",), signal.SIGHUP, None),
    ):
        settings["output_dir"] += "-x"
        with start(settings, *flags, ignoring=ignoring) as process:
            wait_for_step(settings, process)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr


@pytest.mark.long
def test_a_closed_stdout_does_not_stop_training(settings):
    settings["max_steps"] = 6
    with start(settings, "--json") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        stderr = process.stderr.read()
        process.wait(60)
    assert process.returncode == 0, stderr
    assert steps_of(settings)[-1] == 6


@pytest.mark.long
def test_a_terminal_that_goes_away_saves_and_ends(settings):
    master, slave = pty.openpty()
    place = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
    with start(settings, **place) as process:
        os.close(slave)
        wait_for_step(settings, process)
        os.close(master)
        process.send_signal(signal.SIGHUP)
        process.wait(60)
    assert process.returncode == 129
    last = steps_of(settings)[-1]
    assert verify(Path(settings["output_dir"]) / "checkpoints" / f"step-{last:06d}").step == last


def test_a_library_call_installs_no_handler_and_ctrl_c_saves_first(settings):
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    def listen(event, line):
        if isinstance(event, events.StepFinished) and event.step == 2:
            during.extend(signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM))
            os.kill(os.getpid(), signal.SIGINT)

    during: list[object] = []
    session = Session(PorosConfig(**settings), listeners=[listen])
    with pytest.raises(KeyboardInterrupt):
        session.run()
    assert during == before[:2]
    last = steps_of(settings)[-1]
    assert verify(Path(settings["output_dir"]) / "checkpoints" / f"step-{last:06d}").step == last
