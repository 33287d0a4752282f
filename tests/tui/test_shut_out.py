"""Folders that may not be looked into, or change under a look: said in words, and no end."""

import asyncio
import json
import os
import threading

import pytest

from poros import atomic, run_registry, runs
from poros.home_paths import here, typed_path
from poros_tui import settings, state, words
from poros_tui.app import PorosApp
from poros_tui.engine.run_list import RunList
from poros_tui.screens.config_facts import Lookup, look_at_data, look_at_model
from poros_tui.screens.result_facts import OutcomeReader
from tests.tui.live_run import wait_for
from tests.tui.pilot import StandingWatch
from tests.tui.shut_out import modes_that_count

RUN_ID = "ab12"


@pytest.fixture
def closed(tmp_path, monkeypatch):
    """A run in a folder that may not be looked into; the last session showed it."""
    for name in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    run = tmp_path / "secret" / "run"
    run.mkdir(parents=True)
    run.joinpath("run.json").write_text(json.dumps({"run_id": RUN_ID}))
    run.joinpath("events.jsonl").write_text("")
    run_registry.keep(RUN_ID, run)
    state.save(json.dumps({"run_folder": str(run)}))
    run.parent.chmod(0)
    with modes_that_count():
        yield run
    run.parent.chmod(0o700)


def test_an_app_opens_that_showed_a_run_which_may_not_be_looked_at_any_more(closed):
    async def run():
        app = PorosApp(watch=StandingWatch(), run_list=RunList(), keep=False)
        async with app.run_test() as pilot:
            for key in "5678":
                await pilot.press(key)
                await pilot.pause()
            assert app.state.followed is None
            return app.return_code

    assert asyncio.run(run()) in (None, 0)


def test_a_run_that_may_not_be_looked_at_is_in_the_list_and_ends_no_list(closed):
    found = RunList()
    found.read_now()
    assert [one.run.path for one in found.latest] == [closed]


def test_the_users_folders_may_be_shut(closed, tmp_path):
    for name in ("state", "config", "cache"):
        tmp_path.joinpath(name).mkdir(exist_ok=True)
        tmp_path.joinpath(name).chmod(0)
    try:
        assert settings.load() == settings.Settings()
        assert state.load().run_folder is None
        assert runs.known_runs() == []
        state.save("{}")
    finally:
        for name in ("state", "config", "cache"):
            tmp_path.joinpath(name).chmod(0o700)


def test_a_model_and_data_that_may_not_be_read_are_said_to_be(closed):
    for look in (look_at_model, look_at_data):
        lookup = Lookup(look)
        found = wait_for(lambda lookup=lookup: lookup.ask(str(closed / "x.jsonl")), "an answer")
        assert found.is_wrong
        assert found.told


@pytest.mark.parametrize("key", ["messages", "conversations"])
def test_rows_without_a_message_are_counted(key, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({key: []}) + "\n")
    assert look_at_data(str(data)).num_rows == 1


def test_an_outcome_that_could_not_be_read_is_read_once_it_can_be(closed):
    reader = OutcomeReader()
    folder = typed_path(closed)

    def followed():
        reader.follow(folder)
        return reader.latest

    assert wait_for(followed, "an answer").error
    closed.parent.chmod(0o700)
    wait_for(lambda: (found := followed()) and not found.error, "the run")


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), PermissionError(13, "no")])
def test_a_failing_disk_ends_neither_the_list_nor_the_reading_of_an_outcome(
    error, closed, monkeypatch
):
    def fails(*_):
        raise error

    found = RunList(look=fails)
    found.read_now()
    assert found.was_read
    monkeypatch.setattr("poros.report_facts.read_facts", fails)
    reader = OutcomeReader()

    def followed():
        reader.follow(typed_path(closed))
        return reader.latest

    assert error.strerror in wait_for(followed, "an answer").error
    assert not reader._is_reading


def test_a_folder_whose_files_go_while_they_are_counted_has_a_size(tmp_path):
    """A run puts its checkpoints in place and removes old ones while lists are read."""
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for number in range(8):
                inner = tmp_path / f"step-{number}" / "inner"
                inner.mkdir(parents=True, exist_ok=True)
                inner.joinpath("weights").write_bytes(b"x" * 10)
            for number in range(8):
                atomic.remove(tmp_path / f"step-{number}")

    writer = threading.Thread(target=change)
    writer.start()
    try:
        sizes = [atomic.size_of(tmp_path) for _ in range(2000)]
    finally:
        stop.set()
        writer.join()
    assert set(sizes) <= {10 * number for number in range(9)}


def test_the_current_folder_may_be_gone(tmp_path, monkeypatch):
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    inside.rmdir()
    assert here() == inside
    assert typed_path("run").absolute() == inside / "run"
    assert not here().exists()


def test_links_in_a_circle_are_no_run(tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    assert typed_path(circle).resolve() == circle
    assert not typed_path(circle).is_dir()


def test_a_user_without_a_home_has_paths_as_they_are(monkeypatch):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert words.short_path("/data/run") == "/data/run"


def test_a_run_that_another_one_removes_meanwhile_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "run"
    folder.mkdir()
    folder.joinpath("run.json").write_text(json.dumps({"run_id": RUN_ID}))
    run_registry.keep(RUN_ID, folder)
    run = runs.look_at(runs.find_run(str(folder)))
    sweep = atomic.sweep_temps

    def sweep_and_lose(path, **named):
        found = sweep(path, **named)
        path.joinpath("lock").unlink(missing_ok=True)
        path.rmdir()
        return found

    monkeypatch.setattr(atomic, "sweep_temps", sweep_and_lose)
    assert runs.remove_run(run) == []
    assert runs.known_runs() == []
