"""Runs are started, gone on with and begun anew from any screen; a second one is asked about."""

import json
from pathlib import Path

import pytest

from poros_tui import run_control
from poros_tui.engine.process import Ending, Engine, Start
from poros_tui.widgets.confirm import ConfirmDialog
from tests.tui import made_runs
from tests.tui.listed_runs import StandingRuns, listed
from tests.tui.pilot import app_of, at, piloted
from tests.tui.scenes.train import TellRun
from tests.tui.test_train import text_of

REFUSED = Ending("failed", 4, "no such model", "m/none", "choose another", "E-model")


class Child:
    """A process that has begun and says nothing."""

    pid, exit_code = -1, None

    def stderr_text(self):
        return ""


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """What is started: settings and flags of each; none is a real process."""
    starts = []

    def start_run(config, *, settings=(), flags=()):
        starts.append((config.name, *settings, *flags))
        folder = Path(settings[-1].partition("=")[2]) if settings else tmp_path / "new"
        return Engine(folder, Child(), Start(config, tuple(settings), tuple(flags)))

    monkeypatch.setattr(run_control, "start_run", start_run)
    (tmp_path / "train.yaml").write_text(f"output_dir: {tmp_path / 'new'}\n")
    return starts


async def until(pilot, condition):
    for _ in range(500):
        await pilot.pause(0.01)
        if condition():
            return
    raise AssertionError("it did not come")


def told_before(folder):
    """A run's folder as a killed process leaves it, without a checkpoint."""
    folder.mkdir()
    (folder / "config.yaml").write_text("max_steps: 9\n")
    with (folder / "events.jsonl").open("w") as file:
        for line in made_runs.trained(30).lines:
            record = json.loads(line)
            file.write(json.dumps(record | {"time_s": record["time_s"] - 1e9}) + "\n")
    return folder


async def a_first_start_that_was_refused_can_be_tried_again(app, pilot, begun, tmp_path):
    folder = tmp_path / "new"
    run = TellRun([], ending=REFUSED, folder=str(folder))
    run.start = Start(tmp_path / "train.yaml", ("max_steps=3",), ("--resume", "never"))
    app.state.followed = run
    await app.tick()
    assert app.summary().state == "failed"
    told = text_of(app, "#ending-lines")
    assert "It had not begun yet: nothing is lost." in told
    assert "r Try again    5 Change it in Config" in told
    await pilot.press("r")
    await until(pilot, lambda: begun)
    expected = ("train.yaml", "max_steps=3", f"output_dir={folder}", "--resume", "never")
    assert begun == [expected]
    run.start = None
    app.state.followed = run  # as an app that was started since finds it
    await app.tick()
    await pilot.press("r")
    await until(pilot, lambda: app._notifications)
    assert "start it from 5 Config" in next(iter(app._notifications)).message


async def one_that_is_gone_on_with_shows_at_once_that_it_starts(app, pilot, begun, tmp_path):
    folder = told_before(tmp_path / "old")
    app.runs.follow(folder)
    await until(pilot, lambda: app.state.followed.caught_up)
    await app.tick()
    told = text_of(app, "#ending-lines")
    assert told.count("begins anew") == 1
    assert "r Begin anew" in told
    begun.clear()
    await pilot.press("r")
    await until(pilot, lambda: begun and app.state.followed.caught_up)
    await app.tick()
    assert begun == [("config.yaml", f"output_dir={folder}")]
    assert app.state.followed.run.step == 30  # told by the process before
    assert "The engine starts" in text_of(app, "#start-lines")
    assert app.summary().state == "starting"
    assert text_of(app, "#alerts") == ""
    app.state.followed.close()


def test_the_engine_of_a_run_is_started_again(begun, tmp_path):
    @piloted(mode="train")
    async def drive(app, pilot):
        await a_first_start_that_was_refused_can_be_tried_again(app, pilot, begun, tmp_path)
        await one_that_is_gone_on_with_shows_at_once_that_it_starts(app, pilot, begun, tmp_path)

    drive()


async def asked(app, pilot, config):
    app.run_worker(app.runs.start(config))
    await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
    return app.screen


async def beside_one_that_goes_on_another_is_started_only_if_wanted(app, pilot, begun, tmp_path):
    other, config = Path("/home/ada/poros/harbour-voice"), tmp_path / "train.yaml"
    await asked(app, pilot, config)
    await pilot.press("escape")
    await pilot.pause()
    await asked(app, pilot, config)
    await pilot.press("w")
    await until(pilot, lambda: app.current_mode == "train")
    assert (app.state.followed.folder, begun) == (other, [])
    same = tmp_path / "same.yaml"
    same.write_text(f"output_dir: {other}\n")
    dialog = await asked(app, pilot, same)
    assert [answer.value for answer in dialog._answers] == ["watch", ""]
    await pilot.press("escape")
    await asked(app, pilot, config)
    await pilot.press("b")
    await until(pilot, lambda: begun)
    assert begun == [("train.yaml",)]


async def one_without_checkpoint_begins_anew_only_if_wanted(app, pilot, begun, folder):
    begun.clear()
    app.runs.list.latest = app.runs.list.latest[1:]
    app.runs.list.version += 1
    app.runs.follow(None)
    for key, expected in (("escape", []), ("b", [("config.yaml", f"output_dir={folder}")])):
        await at(app, pilot, "runs")
        await pilot.press("g")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await pilot.press(key)
        await until(pilot, lambda expected=expected: begun == expected)


def test_a_second_run_and_one_that_must_begin_anew_are_asked_about(begun, tmp_path):
    short = listed("short", "killed", 12, 30)
    folder = told_before(tmp_path / "short")
    object.__setattr__(short.run.known, "path", folder)
    runs = StandingRuns(listed("harbour-voice", "running", 412, 1200), short)

    @piloted(make=lambda: app_of(runs=runs))
    async def drive(app, pilot):
        await beside_one_that_goes_on_another_is_started_only_if_wanted(app, pilot, begun, tmp_path)
        await one_without_checkpoint_begins_anew_only_if_wanted(app, pilot, begun, folder)

    drive()
