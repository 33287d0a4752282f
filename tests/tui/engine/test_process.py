"""An engine's process: started, found, told, ended; and what is said of how it ended."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poros.errors import PorosConfigError
from poros_tui.engine import commands, followed, process
from poros_tui.engine.commands import NoEngineError, Watch, order, order_later
from poros_tui.engine.follow import EventReader
from poros_tui.engine.process import engine_at, find_run, start_run

ROOT = Path(__file__).parents[3]
LIMIT_S = 60
STUB = (sys.executable, "-m", "tests.tui.engine.stub_engine")

# An app that starts a run, says so, and is killed.
APP = """
import os, sys, time
from pathlib import Path
from poros_tui.engine import process
process.PROGRAM = eval(sys.argv[1])
engine = process.start_run(Path(sys.argv[2]))
while engine.poll() == "starting":
    time.sleep(0.02)
print(engine.pid, flush=True)
time.sleep(600)
"""


def wait_for(condition, limit_s=LIMIT_S):
    until_s = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.01)
    return found


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PROGRAM", STUB)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "engine"), str(ROOT)]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "train.yaml"
    settings = {"dataset": "d", "output_dir": str(tmp_path / "run"), "max_steps": 3_000}
    path.write_text(json.dumps(settings))
    yield path
    for line in (tmp_path / "run").glob("logs/engine.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(line.read_text())["pid"], signal.SIGKILL)


def running(config, *settings):
    engine = start_run(config, settings=settings)
    assert engine.poll() == "starting"
    wait_for(lambda: engine.poll() == "running" and engine.events_path.exists())
    wait_for(lambda: "step_finished" in engine.events_path.read_text())
    return engine


def test_a_run_is_watched_by_two_told_what_to_do_and_ends_as_asked(config):
    engine = running(config)
    assert engine.is_own
    reader = EventReader(engine.events_path, every_s=0.02)
    watches = [Watch(engine.folder, again_s=0.05) for _ in range(2)]
    for watch in watches:
        sample = wait_for(lambda watch=watch: watch.latest)
        assert (sample.blocks, sample.computing, sample.direction) == ("rc.", 1, "forward")
        assert (sample.phase, sample.device, watch.why_not) == ("train", None, "")
    assert order(engine.folder, "pause").taken
    answers = []
    pending = order_later(engine.folder, "pause", then=answers.append)
    assert not pending.wait(LIMIT_S).taken
    wait_for(lambda: answers == [pending.answer])
    engine.send(signal.SIGTERM)
    wait_for(lambda: engine.poll() == "ended")
    assert engine.exit_code == engine.ending().exit_code == 143
    assert engine.ending().status == "stopped"
    for watch in watches:
        assert wait_for(lambda watch=watch: watch.why_not)
        assert watch.latest is None
        watch.close()
    seen = []
    wait_for(
        lambda: (
            seen.extend(reader.drain().lines) or any(x.event.name == "run_finished" for x in seen)
        )
    )
    assert "command_acknowledged" in [line.event.name for line in seen]
    reader.close()
    assert not engine.send(signal.SIGTERM)
    assert not engine.kill()


def test_killing_the_app_leaves_the_run_and_killing_the_run_is_told(config):
    with subprocess.Popen(
        [sys.executable, "-c", APP, repr(STUB), str(config)], stdout=subprocess.PIPE, text=True
    ) as app:
        pid = int(app.stdout.readline())
        app.kill()
    engine = engine_at(config.parent / "run")
    assert (engine.poll(), engine.pid, engine.is_own) == ("running", pid, False)
    wait_for((engine.folder / "control.sock").exists)
    size_bytes = engine.events_path.stat().st_size
    wait_for(lambda: engine.events_path.stat().st_size > size_bytes)
    assert os.getsid(pid) == pid != os.getsid(0)
    watch = Watch(engine.folder)
    wait_for(lambda: watch.latest)
    assert engine.ending() is None
    assert engine.kill()
    told_s = time.monotonic()
    wait_for(lambda: engine.poll() == "ended", limit_s=3)
    ending = engine.ending()
    assert time.monotonic() - told_s < 3
    assert (ending.status, ending.exit_code) == ("killed", None)
    assert "without a word" in ending.message
    assert ending.remediation.endswith("nothing was saved yet, so it begins anew")
    (engine.folder / "checkpoints" / "step-000007").mkdir()
    assert engine_at(engine.folder).ending().remediation.endswith("it goes on from step 7")
    assert set(ending.log_lines) == {
        "said before there was a folder", "the library says something", "and something else"
    }  # fmt: skip
    wait_for(lambda: watch.why_not)
    watch.close()
    with pytest.raises(NoEngineError, match="left over"):
        order(engine.folder, "stop")


def test_an_engine_that_is_killed_is_told_with_its_signal_and_whether_it_was_for_memory(config):
    engine = running(config)
    engine.kill()
    wait_for(lambda: engine.poll() == "ended", limit_s=3)
    assert (engine.ending().status, engine.ending().exit_code) == ("killed", 137)
    assert "SIGKILL" in engine.ending().message
    record = engine.logs / "engine.json"
    told = json.loads(record.read_text())
    group = engine.folder / "group"
    group.mkdir()
    for before, now, kind in [(0, 1, "E-host-memory"), (1, 1, ""), (None, 1, "")]:
        record.write_text(json.dumps(told | {"cgroup": str(group), "oom_kills": before}))
        (group / "memory.events").write_text(f"low 0\noom 3\noom_kill {now}\n")
        ending = engine_at(engine.folder).ending()
        assert (ending.status, ending.code) == ("killed", kind)


@pytest.mark.parametrize(
    ("fault", "status", "code", "words"),
    [
        ("refused", "failed", 1, "nothing like that is here"),
        ("failed", "failed", 12, "the loss is NaN"),
        pytest.param("crash", "killed", 134, "SIGABRT", marks=pytest.mark.long),
    ],
)
def test_how_a_run_went_wrong_is_said_in_words(config, monkeypatch, fault, status, code, words):
    monkeypatch.setenv("STUB_FAULT", fault)
    engine = start_run(config)
    wait_for(lambda: engine.poll() == "ended")
    ending = engine.ending()
    assert (ending.status, ending.exit_code) == (status, code)
    assert words in ending.message
    assert ending.remediation
    if fault == "refused":
        assert (ending.where, ending.remediation) == ("model x", "y")
        assert not engine.folder.exists()
        assert "\nporos: error[E-internal]: nothing like that" in engine.told()
    else:
        assert "the library says something" in ending.log_lines
    if fault == "crash":
        assert any("Fatal Python error: Aborted" in line for line in ending.log_lines)


@pytest.mark.long
def test_a_second_start_in_the_folder_is_refused_and_tells_nothing_of_the_first(config):
    first = running(config)
    second = start_run(config)
    wait_for(lambda: second.poll() != "starting")
    assert second.poll() == "ended"
    assert second.ending().exit_code == 7
    assert "another run holds" in second.ending().message
    assert first.poll() == "running"
    assert order(first.folder, "stop").taken
    wait_for(lambda: first.poll() == "ended")
    assert first.ending().exit_code == 0


def test_a_wrong_config_is_said_before_anything_starts(config):
    config.write_text("lora_rnk: 3\nseed: x\n")
    with pytest.raises(PorosConfigError) as caught:
        start_run(config)
    assert len(caught.value.problems) == 2


def test_the_run_to_attach_to_is_the_one_that_goes_on(config, tmp_path):
    with pytest.raises(PorosConfigError, match="no run yet"):
        find_run()
    engine = running(config)
    places = [config.parent]
    assert find_run(places=places).folder == engine.folder
    assert find_run(str(engine.folder)).pid == engine.pid
    other = running(config, f"output_dir={tmp_path / 'other'}")
    with pytest.raises(PorosConfigError, match="2 runs are going on"):
        find_run(places=places)
    for each in (engine, other):
        assert order(each.folder, "stop").taken
    for each in (engine, other):
        wait_for(lambda each=each: each.poll() == "ended")
    assert find_run(places=places).folder in (engine.folder, other.folder)


@pytest.mark.parametrize("how", ["none", "file", "foreign", "dead", "deaf"])
def test_a_socket_that_does_not_answer_is_said_in_words(tmp_path, monkeypatch, how):
    import socket

    place, words = tmp_path / "control.sock", "no socket"
    listener = socket.socket(socket.AF_UNIX)
    if how == "file":
        place.write_text("")
        words = "is none"
    elif how != "none":
        listener.bind(str(place))
        words = {"foreign": "another user", "dead": "left over", "deaf": "within 0.2 s"}[how]
        if how != "dead":
            listener.listen()
    if how == "foreign":
        monkeypatch.setattr(commands.os, "getuid", lambda: 12345)
    with pytest.raises(NoEngineError, match=words):
        order(tmp_path, "stop", limit_s=0.2)
    assert not order_later(tmp_path, "stop", limit_s=0.2).wait(LIMIT_S).taken
    listener.close()


def test_a_run_whose_folder_is_moved_away_is_not_told_as_dead(config):
    engine = running(config)
    found, place = engine_at(engine.folder), engine.folder.with_name("elsewhere")
    assert found.poll() == "running"
    engine.folder.rename(place)
    told = found.ending()
    assert (
        told.message == "the run's folder was moved or deleted, and its engine goes on without it"
    )
    assert f"kill {engine.pid}" in told.remediation
    place.rename(engine.folder)
    assert (found.poll(), found.ending()) == ("running", None)
    engine.folder.rename(place)
    engine.kill()
    wait_for(lambda: engine.poll() == "ended")
    told = found.ending()
    assert (told.message, "kill" in told.remediation) == (
        "the run's folder was moved or deleted", False,
    )  # fmt: skip


def test_of_a_run_that_goes_on_without_its_event_file_it_is_told(config, monkeypatch):
    monkeypatch.setattr(followed, "_UNREAD_S", 0.2)
    engine = running(config)
    run = followed.FollowedRun.at(engine.folder)
    wait_for(lambda: run.tick() and run.run.step)
    assert run.unread == ""
    engine.events_path.unlink()
    wait_for(lambda: (run.tick(), run.unread)[1])
    assert run.unread == "The run's events.jsonl can't be read: no such file or directory."
    engine.folder.rename(engine.folder.with_name("elsewhere"))
    own = followed.FollowedRun(engine)
    wait_for(lambda: (own.tick(), own.unread)[1])
    assert own.unread == "The run's folder was moved or deleted."
    engine.kill()
    wait_for(lambda: engine.poll() == "ended")
    engine.folder.with_name("elsewhere").rename(engine.folder)
    assert "its events.jsonl is gone" in engine_at(engine.folder).ending().message
    for each in (run, own):
        each.close()
