"""Home: what it offers, and where its choices lead."""

from textual.widgets import OptionList, Static

from poros_tui.screens.home import HomeScreen
from tests.tui.listed_runs import EACH_STATE, HOUR, StandingRuns, listed
from tests.tui.pilot import app_of, at, footer, piloted


def ways(app):
    """The names of what can be chosen, in order."""
    assert isinstance(app.screen, HomeScreen)
    return [option.id for option in app.screen.query_one("#ways", OptionList).options]


@piloted()
async def test_without_runs_the_guided_setup_comes_first_and_enter_begins_it(app, pilot):
    assert ways(app) == ["setup", "demo", "config", "runs"]
    assert app.screen.query_one("#no-runs").display
    await pilot.press("enter")
    await at(app, pilot, "doctor")
    assert app.current_mode == "doctor"


@piloted(make=lambda: app_of(runs=StandingRuns(*EACH_STATE)))
async def test_a_run_that_goes_on_and_one_that_was_cut_off_are_offered_first(app, pilot):
    assert ways(app)[:2] == ["running", "resume"]
    resumed = []
    app.runs.resume = resumed.append
    await pilot.press("down", "enter")
    assert [one.name for one in resumed] == ["harbour-voice-r32"]
    await pilot.press("g")
    assert len(resumed) == 2


DONE = listed("done", "finished", 40, 40)
CUT = listed("cut", "killed", 20, 40, ago_s=9 * HOUR, checkpoint_step=20)


@piloted(make=lambda: app_of(runs=StandingRuns(DONE, CUT)))
async def test_nothing_is_resumed_that_was_left_behind_by_a_later_run(app, pilot):
    assert ways(app) == ["setup", "demo", "config", "runs"]
    await pilot.press("g")
    await pilot.pause()
    assert [note.message for note in app._notifications] == [
        "No run was cut off: there is nothing to go on with."
    ]


@piloted(make=lambda: app_of(runs=StandingRuns(DONE)))
async def test_a_recent_run_is_opened(app, pilot):
    opened = []
    app.runs.open = opened.append
    await pilot.press("tab", "down", "enter")
    assert opened == [DONE]


@piloted(make=lambda: app_of(runs=StandingRuns()))
async def test_the_first_run_appears_where_there_was_none(app, pilot):
    for mode, lines in (("home", "#recent-runs"), ("runs", "#run-list")):
        await at(app, pilot, mode)
        assert not app.screen.query_one(lines).display
    app.runs.list.latest, app.runs.list.version = (DONE,), app.runs.list.version + 1
    for mode, lines in (("home", "#recent-runs"), ("runs", "#run-list")):
        await at(app, pilot, mode)
        await app.tick()
        assert app.screen.query_one(lines, OptionList).option_count == 1
        assert app.screen.query_one(lines).display


@piloted(make=lambda: app_of(runs=StandingRuns(listed("cut", "killed", 20, 40))))
async def test_a_run_without_checkpoint_is_said_to_begin_again(app, pilot):
    assert footer(app)["choose('resume')"] == "Begin anew"
    await pilot.press("g")
    await pilot.pause()
    assert app.screen.query_one(".dialog-title", Static).render().plain == "Begin cut anew?"
