"""The Train screen, driven by keys, on made and recorded runs."""

import dataclasses
import random
from types import SimpleNamespace

import pytest
from textual.widgets import Input, Static

from poros import events
from poros_tui import run_control
from poros_tui.engine import commands
from poros_tui.engine.process import Ending
from poros_tui.engine.run_alerts import Surroundings, alerts_of
from poros_tui.engine.run_pace import pace_of
from poros_tui.engine.run_state import RunState
from poros_tui.engine.way_out import WayOut, way_out
from poros_tui.glyphs import FANCY
from poros_tui.screens import train_numbers
from poros_tui.screens.train import TrainScreen
from poros_tui.screens.train_curves import View, at_cursor, picture_of
from poros_tui.screens.train_ending import told_ending
from poros_tui.screens.train_numbers import Scene, run_lines
from poros_tui.state import AppState
from poros_tui.widgets.block_map import BlockMap
from poros_tui.widgets.confirm import ConfirmDialog
from poros_tui.widgets.log_pane import LogPane
from poros_tui.widgets.plot import Plot
from tests.tui import made_runs
from tests.tui.pilot import MACHINE, NOW, footer, piloted
from tests.tui.scenes import train as scenes

WIDE, SMALL = (120, 40), (80, 24)


def text_of(app, selector):
    return app.screen.query_one(selector, Static).render().plain


def is_shown(app, selector):
    return app.screen.query_one(selector).region.height > 0


@pytest.fixture
def ordered(monkeypatch):
    """What the engine is told; it takes everything."""
    given = []

    def order_later(folder, command, *, then):
        given.append((folder.name, command))
        then(commands.Answer(True, "done"))

    monkeypatch.setattr(run_control, "order_later", order_later)
    return given


@piloted(mode="train", size=SMALL, make=scenes.going)
async def test_the_smallest_window_has_the_curve_the_blocks_and_the_card(app, pilot):
    for part in ("#plot", "#run-lines", "#blocks", "#memory-lines"):
        assert is_shown(app, part), part
    assert not is_shown(app, "#log")
    assert "step 412 of 1,200  34%" in text_of(app, "#run-lines")
    assert "1 h 16 min left" in text_of(app, "#run-lines")
    assert "8.1 of 12.3 GB" in text_of(app, "#memory-lines")
    assert app.screen.query_one("#plot").region.height >= 6


async def a_large_window_has_all_parts(app, pilot):
    for part in ("#plot", "#run", "#model", "#memory", "#answer", "#log"):
        assert is_shown(app, part), part
    told = text_of(app, "#run-lines")
    for words in ("held out       1.398", "learning rate  1.5e-4", "tokens/s       2,820"):
        assert words in told
    assert "others 1.5" in text_of(app, "#memory-lines")
    assert "twice as honest" in text_of(app, "#answer-lines")
    assert "backward block 16 of 28" in text_of(app, "#blocks-status")
    assert app.screen.query_one(BlockMap).blocks.states.count("r") == 8


@piloted(mode="train", size=SMALL, make=scenes.beginning)
async def test_before_the_first_step_each_part_of_the_start_is_told(app, pilot):
    told = text_of(app, "#start-lines")
    assert "✓ Start the engine" in told
    assert "● Pack the model to 4 bits" in told
    assert "18 of 28 layers, 21 s left" in told
    assert "○ Put the adapter in" in told
    assert not is_shown(app, "#plot")


@piloted(mode="train", size=WIDE, make=scenes.troubled)
async def test_alerts_say_what_is_so_and_can_be_put_away(app, pilot):
    told = text_of(app, "#alerts")
    assert "The loss climbs: 4.75 now, 1.41 at its best." in told
    assert "4 blocks stay instead of 8" in told
    await pilot.press("backspace")
    assert "The loss climbs" not in text_of(app, "#alerts")
    assert app.screen.query_one(BlockMap).blocks.states.count("r") == 8


@piloted(mode="train", size=SMALL, make=scenes.failed)
async def test_a_failed_run_says_why_and_what_helps(app, pilot):
    told = text_of(app, "#ending-lines")
    assert told.startswith("✗ The card ran out of memory.")
    assert "Saved up to step 400; 12 steps are made again." in told
    assert "a Set vram_budget: min, num_slots: 2, and go on" in told
    lines = app.screen.query_one(LogPane).lines.shown
    assert lines[-1].level == "error"
    assert is_shown(app, "#log")
    assert footer(app)["resume"] == "Go on"


@piloted(mode="train", size=SMALL, make=scenes.failed_early)
async def test_a_run_that_saved_nothing_is_not_said_to_go_on(app, pilot):
    assert footer(app)["resume"] == "Begin anew"


@piloted(mode="train", size=WIDE, make=scenes.done)
async def test_a_finished_run_leads_to_its_result(app, pilot):
    assert "Trained: 40 steps in 3 min 50 s." in text_of(app, "#ending-lines")
    run = dataclasses.replace(app.state.followed.run, first_step=30)
    told = told_ending(run, Ending("finished", 0, "finished"), 80, FANCY).text.plain
    assert "Trained: 40 steps, those after step 30, in 3 min 50 s." in told
    await pilot.press("enter")
    assert app.current_mode == "result"


@piloted(mode="train", size=SMALL)
async def test_without_a_run_it_says_where_to_start_one(app, pilot):
    assert "Start one in 5 Config" in text_of(app, "#nothing")
    await pilot.press("c", "p", "s", "x", "r", "a", "enter", "z", "slash")
    assert app.current_mode == "train"


ORDERS = (
    (["c"], "checkpoint"),
    (["p"], "pause"),
    (["s", "enter"], "stop"),
    (["s", "s"], "stop"),
    (["x", "x"], "stop_now"),
    (["x", "s"], "stop"),
)
REFUSALS = (["s", "escape"], ["x", "enter"], ["x", "k"], ["d", "escape"])


async def answered(app, pilot):
    """The dialog is gone, which takes a moment after its answer."""
    for _ in range(50):
        await pilot.pause()
        if not isinstance(app.screen, ConfirmDialog):
            return
    raise AssertionError("the dialog stays")


def test_orders_go_to_the_engine_and_nothing_is_lost_without_a_yes(ordered):
    @piloted(mode="train", size=SMALL, make=scenes.going)
    async def drive(app, pilot):
        for keys, command in ORDERS:
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            await answered(app, pilot)
            assert ordered == [("harbour-voice", command)], keys
            ordered.clear()
        for keys in REFUSALS:
            await pilot.press(keys[0])
            await pilot.pause()
            assert isinstance(app.screen, ConfirmDialog)
            if keys[0] == "x":
                options = app.screen.query_one("#answers").options
                told = " ".join(str(option.prompt) for option in options)
                assert "12 steps are lost, those since step 400." in told
            await pilot.press(*keys[1:])
            await answered(app, pilot)
            assert ordered == []
            assert app.is_running

    drive()


async def each_part_can_be_seen_alone(app, pilot):
    for key, part in (("z", "#plot"), ("m", "#answers"), ("l", "#log")):
        await pilot.press(key)
        await pilot.pause()
        assert app.screen.query_one(part).region.height > 25, part
        await pilot.press(key)
    await pilot.pause()
    assert is_shown(app, "#model")


async def the_log_is_filtered_by_what_is_typed(app, pilot):
    pane = app.screen.query_one(LogPane)
    assert len(pane.lines.shown) > 8
    await pilot.press("slash", *"held")
    assert {"held-out" in line.text for line in pane.lines.shown} == {True}
    await pilot.press("enter")
    assert len(pane.lines.shown) == 4
    await pilot.press("slash", *"xyz", "enter")
    assert pane.lines.shown == []
    assert pane.lines.render_line(0).text.startswith("No line has xyz: / and esc show all")
    await pilot.press("slash", "escape")
    assert len(pane.lines.shown) > 8
    assert not app.screen.query_one(Input).display
    await pilot.press("l", "slash", "escape")
    assert app.screen.has_class("-page-log")
    await pilot.press("escape")
    assert not app.screen.has_class("-page-log")


async def keys_change_how_the_curve_is_drawn(app, pilot):
    view, plot = app.screen.view, app.screen.query_one(Plot)
    await pilot.press("y", "w", "t", "v")
    assert (view.is_log, view.smoothing, view.axis) == (True, "strong", "time")
    assert view.quantity == "gradient norm"
    assert plot.picture.is_log
    await pilot.press("plus", "plus")
    left, right = plot.picture.x_range
    assert right - left == pytest.approx(app.state.followed.run.steps.last("trained_s") / 4, 0.01)
    await pilot.press("left")
    assert plot.picture.cursor is not None
    await pilot.press("0")
    assert plot.picture.cursor is None


async def a_display_that_stands_still_goes_on_when_asked(app, pilot):
    run = app.state.followed.run
    await pilot.press("space")
    run.take(made_runs.step_event(413, 1_200, random.Random(1)), NOW)
    await app.tick()
    assert "step 412" in text_of(app, "#run-lines")
    await pilot.press("space")
    await app.tick()
    assert "step 413" in text_of(app, "#run-lines")


def test_a_large_window_has_all_parts_and_each_key_does_its_part():
    # One app for all: a start costs more than all that is done in it.
    @piloted(mode="train", size=WIDE, make=scenes.going)
    async def drive(app, pilot):
        await a_large_window_has_all_parts(app, pilot)
        await each_part_can_be_seen_alone(app, pilot)
        await the_log_is_filtered_by_what_is_typed(app, pilot)
        await keys_change_how_the_curve_is_drawn(app, pilot)
        await a_display_that_stands_still_goes_on_when_asked(app, pilot)

    drive()


def test_the_cursor_tells_the_step_below_it():
    run = RunState()
    run.take_lines(made_runs.trained(101).lines)
    view = View(smoothing="off", cursor=0.5)
    loss = run.steps["loss"][50]
    assert at_cursor(run, view) == f"step 51: {loss:.3f}"
    assert picture_of(run, view, FANCY).cursor == 51.0


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("set vram_budget: min, num_slots: 2 (same bits) and run again; the last one is intact",
         WayOut(("vram_budget=min", "num_slots=2"))),
        ("set max_seq_length: 512, which was tried and fits, and start another run",
         WayOut(("max_seq_length=512",), goes_on=False)),
        ("lower learning_rate or look at these samples; the last checkpoint is intact", WayOut()),
        ("set output_dir to x-2, which is free; see: dmesg", WayOut()),
        ("add `dataset: data.jsonl`, or `num_slots: 2`", WayOut(("num_slots=2",))),
    ],
)  # fmt: skip
def test_a_remedy_gives_its_settings(remedy, expected):
    assert way_out(remedy) == expected


def alerts(made, **around):
    run = RunState()
    run.take_lines(made.lines)
    return alerts_of(run, Surroundings(**{"now_s": made.now_s, "is_alive": True} | around))


def codes(made, **around):
    return [alert.code for alert in alerts(made, **around)]


def told_of(made, **around):
    [alert] = alerts(made, **around)
    return f"{alert.says} {alert.advice}"


def test_a_healthy_run_has_no_alert():
    room = {"disk_free_bytes": 10**11, "card_total_bytes": 12, "card_used_bytes": 8}
    assert codes(made_runs.trained(412), **room) == []


def with_losses(made, losses):
    first = sum('"step_finished"' in line for line in made.lines) + 1
    for step, loss in enumerate(losses, first):
        event = made_runs.step_event(step, 1_200, random.Random(step))
        made.tell(dataclasses.replace(event, loss=loss), event.duration_s)
    return made


def test_a_run_on_the_processor_hears_nothing_of_a_card():
    made = made_runs.trained(20)
    made.lines = [line.replace("cuda:0", "cpu") for line in made.lines]
    made.tell(made_runs.heartbeat(20), 60.0)
    assert "using the processor or the disk" in told_of(made)
    run = RunState()
    run.take_lines(made.lines)
    around = around_of(run)
    assert around.card_total_bytes is None
    assert around.disk_free_bytes == MACHINE.disk_free_bytes


def scene_of(run, live=None):
    return Scene(
        now_s=NOW, glyphs=FANCY, pace=pace_of(run), machine=MACHINE, live=live, weight=0.0,
        is_going=True,
    )  # fmt: skip


def around_of(run, live=None):
    followed = SimpleNamespace(run=run, is_going=True, live=live, unread="")
    return TrainScreen()._around(followed, AppState(machine=MACHINE), 0.0)


def test_the_card_that_is_told_of_is_the_runs_own():
    # Another one than the app's first, as by `device: cuda:1`.
    device = dataclasses.replace(
        scenes.sample().device, total=100, used=97, celsius=91, watts=300.0
    )
    live = dataclasses.replace(scenes.sample(), device=device)
    made = made_runs.trained(100)
    run = RunState()
    run.take_lines(made.lines)
    around = around_of(run, live)
    assert (around.card_used_bytes, around.card_total_bytes) == (97, 100)
    assert [alert.code for alert in alerts_of(run, around)][:2] == ["near-cap", "hot"]
    told = train_numbers.memory_lines(run, scene_of(run, live), 80).plain
    assert "91 °C  300 W" in told
    # Who doesn't watch knows the memory of the last heartbeat, and no heat.
    around = around_of(run)
    assert around.card_total_bytes == run.heartbeat.device_total_bytes
    assert around.card_celsius is None


def test_an_engine_that_cannot_write_is_not_told_as_silent():
    made = made_runs.trained(100)
    assert codes(made, now_s=made.now_s + 300, unwritten="disk full") == ["unwritten"]
    assert codes(made, now_s=made.now_s + 300, unread="It is gone.") == ["unread"]


def test_what_is_wrong_is_told():
    made = made_runs.trained(100)
    event = made_runs.step_event(101, 1_200, random.Random(0))
    made.tell(dataclasses.replace(event, loss=float("nan")), event.duration_s)
    assert codes(made) == ["nan"]
    made = with_losses(made_runs.trained(100), [6.0] * 30)
    assert codes(made) == ["diverging"]
    made = with_losses(made_runs.begun(), [0.0] * 5)
    assert codes(made) == ["zero"]
    made = made_runs.trained(250)
    shrunk = events.PlanShrunk(
        step=250, phase="backward", change="4 blocks stay", plan={}, asked_bytes=1,
        in_use_bytes=1, cap_bytes=1,
    )  # fmt: skip
    made.tell(shrunk)
    assert codes(made) == ["shrunk-1"]
    made = made_runs.trained(250)
    assert codes(made, card_total_bytes=100, card_used_bytes=97) == ["near-cap"]
    assert codes(made, disk_free_bytes=10**9) == ["disk"]
    assert codes(made, card_celsius=91) == ["hot"]
    assert codes(made, card_celsius=70, card_slowed=False) == []
    assert "slows itself down at 70 °C" in told_of(made, card_celsius=70, card_slowed=True)
    assert codes(made, card_celsius=91, is_alive=False) == []
    assert codes(made, now_s=made.now_s + 16) == []
    assert codes(made, now_s=made.now_s + 300) == ["silent"]
    made.tell(made_runs.heartbeat(250), 60.0)
    assert codes(made) == ["stalled"]
    made.tell(made_runs.heartbeat(250, "pause"), 60.0)
    assert codes(made) == []
    failed = events.CheckpointFailed(step=250, reason="disk full", needed_bytes=5, free_bytes=1)
    made.tell(failed)
    assert codes(made) == ["unsaved-250"]
    made_runs.saved(made, 251)
    assert codes(made) == []


def test_the_loss_of_before_the_training_is_not_called_its_best():
    made = made_runs.begun()
    made.tell(
        events.EvaluationFinished(
            step=0, eval_loss=4.5, eval_perplexity=90.0, num_label_tokens=9, duration_s=1.0
        )
    )
    made.tell(made_runs.step_event(1, 40, random.Random(1)))
    run = RunState()
    run.take_lines(made.lines)
    told = run_lines(run, scene_of(run), 50).plain
    assert "before training" in told
    assert "best" not in told
