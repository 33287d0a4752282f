"""Keys that come twice, or were meant for another screen, do no harm."""

import ast
import asyncio
import time
from pathlib import Path

import pytest
from textual import events, notifications
from textual.command import CommandPalette
from textual.geometry import Size
from textual.widgets._toast import Toast
from textual.worker import WorkerFailed

import poros_tui
from poros_tui.driver import ContinuedDriver
from poros_tui.screens.config import ConfigScreen
from poros_tui.screens.config_preview import PathDialog as NameDialog
from poros_tui.widgets.confirm import Answer, ConfirmDialog
from tests.tui.pilot import app_of, piloted

SOURCES = sorted(Path(poros_tui.__file__).parent.rglob("*.py"))
DIALOGS = [
    lambda: ConfirmDialog("Delete it?", [Answer("keep", "Keep it"), Answer("go", "Delete")]),
    lambda: NameDialog("Save as", "mine.yaml"),
]


async def enters(app, pilot, count):
    """So many Enters before any of them is answered."""
    for _ in range(count):
        app.post_message(events.Key("enter", None))
    await pilot.pause()
    await pilot.pause()


@pytest.mark.parametrize("made", DIALOGS)
def test_a_second_enter_closes_nothing_more(made):
    given = []

    @piloted()
    async def test(app, pilot):
        app.push_screen(made(), given.append)
        await pilot.pause()
        await enters(app, pilot, 3)
        assert len(app.screen_stack) == 1

    test()
    assert len(given) == 1


def test_a_notice_whose_time_runs_out_while_it_is_put_up_goes_away(monkeypatch):
    late_s = 0.0
    build = Toast.__init__

    def built_late(self, notice):
        nonlocal late_s
        late_s = 10.0  # the machine slept, or was busy
        build(self, notice)

    monkeypatch.setattr(notifications, "time", lambda: time.time() + late_s)
    monkeypatch.setattr(Toast, "__init__", built_late)

    @piloted()
    async def test(app, pilot):
        app.notify("there", timeout=5)
        for _ in range(200):
            await pilot.pause(0.01)
            if late_s and not app.screen.query(Toast):
                return
        pytest.fail("it stays for ever")

    test()


@piloted()
async def test_nor_in_the_palette(app, pilot):
    await pilot.press("ctrl+p")
    palette = app.screen
    assert isinstance(palette, CommandPalette)
    palette.dismiss()
    palette.dismiss()
    await pilot.pause()
    assert not isinstance(app.screen, CommandPalette)
    assert len(app.screen_stack) == 1


@piloted()
async def test_a_closed_palette_is_not_told_that_nothing_was_found(app, pilot):
    await pilot.press("ctrl+p")
    palette = app.screen
    palette._start_no_matches_countdown("no such command")
    # The timer has run off, and what it is for waits in the queue.
    (tell,) = palette._no_matches_timer._callback.args
    await palette.dismiss()
    await pilot.pause()
    assert tell() is None
    assert not palette.children


@piloted()
async def test_a_search_that_outlives_the_palette_ends_no_app(app, pilot):
    await pilot.press("ctrl+p")
    palette = app.screen
    await palette.dismiss()
    await pilot.pause()
    worker = palette._gather_commands("leave")
    with pytest.raises(WorkerFailed, match="CommandList"):
        await worker.wait()
    assert app._exception is None


@piloted()
async def test_a_screen_chosen_while_the_palette_opens_waits_for_it(app, pilot):
    app.action_command_palette()
    app.go("runs")
    await pilot.pause()
    await pilot.pause()
    assert app.current_mode == "runs"
    app.go("home")
    assert isinstance(app.screen, CommandPalette)


@piloted()
async def test_page_keys_do_nothing_where_nothing_is_seen(app, pilot):
    await pilot.resize_terminal(1, 1)
    await pilot.press("pagedown", "pageup")
    await pilot.press("ctrl+p", "pagedown", "pageup")
    assert app._exception is None


def test_leaving_while_a_screen_comes_up_is_no_bug():
    app = app_of()

    async def leave():
        async with app.run_test():
            app.go("doctor")
            app.exit(0)

    asyncio.run(leave())
    assert (app.return_value, app.crash) == (0, None)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_each_dialog_is_built_on_the_one_that_closes_once(path):
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    bases = [base for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases]
    names = {ast.unparse(base).partition("[")[0] for base in bases}
    assert "ModalScreen" not in names or path.stem == "steady"


@piloted(mode="config")
async def test_number_keys_leave_an_empty_field(app, pilot):
    screen = app.screen
    assert isinstance(screen, ConfigScreen)
    screen.rows["model_name_or_path"].take_keyboard()
    await pilot.pause()
    screen.wizard.model = ""
    screen.rows["model_name_or_path"].put("")
    await pilot.press("3")
    assert app.current_mode == "model"
    assert screen.wizard.model == ""


@piloted(mode="config")
async def test_a_model_chosen_elsewhere_goes_before_what_was_typed(app, pilot):
    screen = app.screen
    screen.rows["model_name_or_path"].take_keyboard()
    await pilot.press("x", "y")
    assert screen.wizard.model.endswith("xy")
    await app.switch_mode("model")
    app.state.update(model="someone/chosen")
    await app.switch_mode("config")
    await pilot.pause()
    assert screen.wizard.model == "someone/chosen"
    assert screen.rows["model_name_or_path"].text == "someone/chosen"


@piloted(mode="home")
async def test_a_palette_opens_while_the_one_before_is_closing(app, pilot):
    await pilot.press("ctrl+p")
    closing = app.screen.dismiss()
    app.action_command_palette()
    await closing
    await pilot.pause()
    assert isinstance(app.screen, CommandPalette)


@piloted()
async def test_a_size_that_was_told_in_the_wrong_order_is_mended(app, pilot):
    true_driver = app._driver
    app._driver = ContinuedDriver.__new__(ContinuedDriver)
    app._driver.size_now = lambda: Size(100, 30)
    await app.tick()
    app._driver = true_driver
    for _ in range(5):
        await pilot.pause(0.02)
    assert app.screen.size == Size(100, 30)
