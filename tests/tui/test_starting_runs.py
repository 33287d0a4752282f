"""A run is there for all who look from the moment its process exists, before it has a folder."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from poros import runs, starting_runs
from poros.errors import PorosOutputError
from poros.run_registry import registry_folder
from poros_tui.engine import process
from poros_tui.engine.followed import FollowedRun
from poros_tui.engine.process import engine_at, find_run, start_run
from poros_tui.engine.run_list import RunList
from poros_tui.widgets.confirm import ConfirmDialog
from poros_tui.widgets.run_lines import LOOKS
from tests.tui.engine.test_process import STUB, wait_for
from tests.tui.pilot import app_of, piloted
from tests.tui.test_headless import Bench
from tests.tui.test_run_control import until


@pytest.fixture
def bench(tmp_path, monkeypatch):
    bench = Bench(tmp_path)
    monkeypatch.setattr(process, "PROGRAM", STUB)
    bench.environ["STUB_WAITS_FOR"] = str(tmp_path / "go")
    for name in ("PYTHONPATH", "XDG_STATE_HOME", "STUB_WAITS_FOR"):
        monkeypatch.setenv(name, bench.environ[name])
    yield bench
    for run in starting_runs.starting_runs():
        engine_at(run.path).kill()
    engine_at(bench.run_folder).kill()


def test_a_run_is_seen_from_its_first_moment_and_nobody_starts_another_in_its_folder(bench):
    own = start_run(bench.config)
    folder = bench.run_folder
    assert runs.going_on() == [folder]
    found = engine_at(folder)
    assert (own.poll(), found.poll(), found.pid) == ("starting", "starting", own.pid)
    assert find_run().folder == find_run(str(folder)).folder == folder
    shown = RunList()
    shown.read_now()
    (one,) = shown.latest
    assert (one.run.state, LOOKS[one.run.state].word, one.is_going) == (
        "starting",
        "starting",
        True,
    )
    with pytest.raises(PorosOutputError, match="is starting"):
        runs.refuse_running(one.run)
    code, _, stderr = bench.run("train", "CONFIG")
    assert code == 7
    assert f"another run is starting in the output folder (pid {own.pid})" in stderr
    with bench.start("attach") as looking:
        assert "the run is starting" in looking.stderr.readline()
        (folder.parent / "go").touch()
        assert looking.stdout.readline().startswith("m on cpu: 3000 steps")
        assert wait_for(lambda: found.poll() == "running")
        assert starting_runs.starting_runs() == []
        shown.read_now()
        assert [one.run.state for one in shown.latest] == ["running"]
        own.kill()
        looking.communicate(timeout=60)
    assert wait_for(lambda: own.poll() == found.poll() == "ended")


def test_one_that_ends_before_it_begins_is_told_so_to_who_only_looks(bench):
    own = start_run(bench.config)
    followed = FollowedRun.at(bench.run_folder)
    assert (followed.process, followed.is_starting) == ("starting", True)
    own.kill()
    wait_for(lambda: own.poll() == "ended")
    wait_for(lambda: own.poll() == "ended")
    followed.tick()
    assert followed.ending.message == "the engine ended before the run began"
    assert runs.going_on() == []
    followed.close()


def test_without_screens_a_run_beside_it_is_told(bench):
    own = start_run(bench.config)
    with bench.start("train", "CONFIG", "--output-dir", str(bench.folder / "other")) as second:
        told = second.stderr.readline()
        assert told.startswith("poros: beside this run another one is going on")
        assert told.rstrip().endswith(str(bench.run_folder))
        for path in (bench.run_folder, bench.folder / "other"):
            wait_for(lambda path=path: engine_at(path).poll() == "starting")
            engine_at(path).kill()
        second.communicate(timeout=60)
    wait_for(lambda: own.poll() == "ended")


def test_the_app_asks_before_it_starts_one_where_another_is_starting(bench):
    own = start_run(bench.config)

    @piloted(make=lambda: app_of(runs=RunList()))
    async def drive(app, pilot):
        app.run_worker(app.runs.start(bench.config))
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        assert [answer.value for answer in app.screen._answers] == ["watch", ""]
        await pilot.press("w")
        await until(pilot, lambda: app.current_mode == "train")
        assert app.state.followed.folder == bench.run_folder
        assert app.state.followed.is_starting

    drive()
    own.kill()
    wait_for(lambda: own.poll() == "ended")


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return registry_folder().with_name("starting")


def test_a_note_counts_only_while_its_very_process_is_there(state, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        starting_runs.note(tmp_path / "run", child.pid)
        assert [run.pid for run in starting_runs.starting_runs()] == [child.pid]
        (place,) = state.iterdir()
        record = json.loads(place.read_text())
        child.kill()
        wait_for(lambda: not starting_runs.starting_runs())  # though nobody has waited for it
    assert list(state.iterdir()) == []
    host = socket.gethostname()
    # A later process of the same number; another machine's; rubbish.
    (state / f"{host}-{os.getpid()}.json").write_text(json.dumps(record))
    (state / "elsewhere-1.json").write_text(json.dumps(record))
    (state / f"{host}-1.json").write_text("{")
    assert starting_runs.starting_runs() == []
    assert [path.name for path in state.iterdir()] == ["elsewhere-1.json"]


def test_of_two_that_begin_at_once_in_a_folder_the_older_one_goes_on(state, tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with starting_runs.noted(folder):
            starting_runs.note(folder, child.pid)
            starting_runs.refuse_starting(folder)
        with pytest.raises(PorosOutputError, match="another run is starting"):
            starting_runs.refuse_starting(Path(os.path.relpath(folder)))
        starting_runs.refuse_starting(tmp_path / "other")
        child.kill()
