"""Runs: the list's keys, and what is asked before something goes."""

import json
from pathlib import Path

import pytest
from textual.widgets import OptionList, Static

from poros import run_registry
from poros.run_registry import Known
from poros.runs import GONE, KILLED
from poros_tui.engine.followed import FollowedRun
from poros_tui.engine.run_list import FAILED, FINISHED, STOPPED, RunList, newest_checkpoint
from poros_tui.screens.runs_compare import CompareDialog
from poros_tui.widgets.confirm import ConfirmDialog
from poros_tui.widgets.header import summary_of
from poros_tui.widgets.plot import Plot
from poros_tui.widgets.run_lines import LOOKS
from poros_tui.widgets.waiting import WaitingDialog
from tests.tui.listed_runs import EACH_STATE, StandingRuns
from tests.tui.live_run import wait_for
from tests.tui.pilot import app_of, at, piloted


def run_in(folder: Path, *, steps: int = 3, run_id: str = "ab12cd34") -> Path:
    """A run folder as a run leaves it, killed after some steps."""
    (folder / "checkpoints" / "step-000002").mkdir(parents=True)
    (folder / "checkpoints" / "set-aside-step-000009").mkdir()
    (folder / "config.yaml").write_text("dataset: rows.jsonl\n")
    (folder / "run.json").write_text(
        json.dumps({"format": 1, "run_id": run_id, "exact": True, "identity": {"model": "m/tiny"}})
    )
    lines = [
        {"event": "run_started", "run_id": run_id, "model": "m/tiny", "device": "cpu",
         "total_steps": 9, "resumed_from_step": None, "versions": {}, "time_s": 5.0},
        *({"event": "step_finished", "step": i, "loss": 1.0, "num_tokens": 8, "duration_s": 1.0,
           "copied_bytes": 0, "copy_wait_s": 0, "device_peak_bytes": 0, "host_rss_bytes": 0,
           "time_s": 5.0 + i} for i in range(1, steps + 1)),
    ]  # fmt: skip
    text = "".join(json.dumps({"v": 1, "seq": i} | line) + "\n" for i, line in enumerate(lines))
    (folder / "events.jsonl").write_text(text)
    return folder


@pytest.fixture
def remembered(tmp_path, monkeypatch):
    """A machine that remembers one run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = run_in(tmp_path / "a-run")
    run_registry.keep("ab12cd34", folder)
    return folder


def test_the_list_reads_a_run_again_only_if_it_changed(remembered):
    looks = []

    def look(known: Known):
        from poros.runs import look_at

        looks.append(known.path)
        return look_at(known)

    runs = RunList(look=look)
    runs.read_now()
    runs.read_now()
    (found,) = runs.latest
    assert (found.name, found.model, found.run.state) == ("a-run", "tiny", "killed")
    assert found.checkpoint_step == 2
    assert found.can_resume
    assert (looks, runs.version) == ([remembered], 1)
    run_in_text = (remembered / "events.jsonl").read_text().splitlines()[-1]
    with (remembered / "events.jsonl").open("a") as file:
        file.write(run_in_text.replace('"step": 3', '"step": 4') + "\n")
    runs.read_now()
    assert runs.latest[0].run.story.step == 4
    assert (len(looks), runs.version) == (2, 2)


def test_a_folder_without_checkpoints_has_no_newest_one(tmp_path):
    assert newest_checkpoint(tmp_path) is None


def each_state():
    return app_of(runs=StandingRuns(*EACH_STATE))


def chosen(app):
    return app.screen.query_one("#run-list", OptionList).highlighted


@piloted(mode="runs", make=each_state)
async def test_the_chosen_run_s_facts_and_its_way_out_are_shown(app, pilot):
    await pilot.press("down", "down")
    facts = str(app.screen.query_one("#run-facts", Static).content)
    assert "12.1 GB are needed" in facts
    assert "lower max_seq_length to 2048" in facts


@piloted(mode="runs", make=each_state)
async def test_two_runs_are_compared_once_one_is_marked(app, pilot):
    await pilot.press("c")
    assert not isinstance(app.screen, CompareDialog)
    await pilot.press("space", "down", "c")
    await pilot.pause()
    assert isinstance(app.screen, CompareDialog)
    table = str(app.screen.query_one("#compare-table", Static).content)
    assert "412" in table
    assert "287" in table
    # Which curve is which can be told without colours.
    rows = [strip.text for strip in map(app.screen.query_one(Plot).render_line, range(6))]
    assert 4 <= "".join(rows).count("○") <= 9
    assert "━○━ harbour-voice-r32" in str(app.screen.query_one(".dialog-title", Static).content)
    await pilot.press("escape")
    assert chosen(app) == 1


@piloted(mode="runs", make=each_state)
async def test_a_run_at_work_is_not_deleted_and_deleting_is_asked_for(app, pilot):
    await pilot.press("x")
    assert not isinstance(app.screen, ConfirmDialog)
    await pilot.press("down", "x")
    assert isinstance(app.screen, ConfirmDialog)
    # Enter without a look keeps it.
    await pilot.press("enter")
    await pilot.pause()
    assert not isinstance(app.screen, ConfirmDialog)
    assert app.screen.query_one("#run-list", OptionList).option_count == len(EACH_STATE)


@piloted(mode="runs", make=each_state)
async def test_what_can_t_go_on_says_why(app, pilot):
    told = []
    app.screen.notify = lambda message, **options: told.append(message)
    app.notify = app.screen.notify
    for key in ("g", "down", "g", "down", "g", "escape", "down", "down", "g", "down", "g"):
        await pilot.press(key)
    await pilot.pause()
    assert told == [
        "It is at work already: Enter shows it.",
        "Its folder is gone, and its config with it: start it from 5 Config.",
        "It is done; clone its config for another run.",
        "Its folder is gone.",
    ]


def test_a_run_is_deleted_cloned_and_reported(remembered):
    @piloted(mode="runs", make=lambda: app_of(runs=_read()))
    async def keys(app, pilot):
        await pilot.press("k")
        await pilot.pause()
        assert app.current_mode == "config"
        assert app.draft.wizard.effort_note == f"as {remembered.name} was"
        assert app.draft.wizard.output_dir == f"{remembered}-2"
        await at(app, pilot, "runs")
        asked = []
        app.push_screen = lambda screen, then=None: asked.append(screen)
        await pilot.press("h")
        await pilot.pause()
        assert [type(screen) for screen in asked] == [WaitingDialog]
        del app.push_screen
        await pilot.press("y", "x", "d")
        await app.workers.wait_for_complete()
        assert app.clipboard == str(remembered)

    keys()
    assert not remembered.exists()


def _read() -> RunList:
    runs = RunList()
    runs.read_now()
    runs.refresh = lambda: None
    return runs


@pytest.mark.parametrize("state", [FINISHED, STOPPED, FAILED, KILLED, GONE])
def test_an_ended_run_has_the_word_of_poros_runs(state):
    assert LOOKS[state].word == state


def test_the_header_says_killed_of_a_run_that_ended_without_a_word(remembered):
    followed = FollowedRun.at(remembered)
    try:
        wait_for(lambda: followed.tick() or followed.caught_up, "its lines")
        assert summary_of(followed, ()).state.split()[0] == KILLED
    finally:
        followed.close()
