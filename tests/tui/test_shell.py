"""The frame that all screens share."""

import asyncio
import dataclasses
import re
from pathlib import Path

import pytest
from textual.color import Color
from textual.containers import VerticalScroll
from textual.widgets import Input, Static
from textual.widgets._footer import FooterKey

import poros_tui
from poros_tui import glyphs, keys, words
from poros_tui.app import PorosApp
from poros_tui.engine.commands import Answer
from poros_tui.engine.process import Ending
from poros_tui.engine.run_state import RunState
from poros_tui.palette import Actions
from poros_tui.screens.base import MODES
from poros_tui.settings import Settings
from poros_tui.settings import load as load_settings
from poros_tui.state import AppState
from poros_tui.state import load as load_state
from poros_tui.state import save as save_state
from poros_tui.terms import TERMS
from poros_tui.themes import OWN
from poros_tui.widgets.confirm import ConfirmDialog
from poros_tui.widgets.entry_list import EntryList
from poros_tui.widgets.help_panel import HelpDialog
from poros_tui.widgets.key_line import KeyLine
from tests.tui import made_runs
from tests.tui.pilot import MACHINE, app_of, at, piloted
from tests.tui.scenes import train as scenes

STYLES = Path(poros_tui.__file__).parent / "styles"


def test_bindings_have_ids_that_are_unique_and_say_what_they_do():
    actions = list(keys.all_actions(list(PorosApp.BINDINGS)))
    assert len({action.id for action in actions}) == len(actions)
    assert [action.id for action in actions if not action.does] == []


def test_no_key_of_a_screen_is_another_binding_s():
    for name in MODES:
        own = list(keys.screen_actions(name))
        pressed = [
            key for a in [*own, *keys.app_actions(PorosApp.BINDINGS)] for key in a.keys.split(",")
        ]
        # The talk's escape stops an answer, and leaves the field as everywhere.
        twice = {key for key in pressed if pressed.count(key) > 1}
        assert twice == ({"escape"} if name == "result" else set()), name


def test_tasks_begin_at_the_loops_next_turn_on_every_python():
    async def run():
        loop = asyncio.get_running_loop()
        loop.set_task_factory(lambda loop, work, **named: asyncio.Task(work, loop=loop, **named))
        async with app_of().run_test():
            assert loop.get_task_factory() is None

    asyncio.run(run())


@pytest.mark.parametrize("name", MODES)
def test_no_key_is_one_that_terminals_keep_for_themselves(name):
    forbidden = {"ctrl+b", "ctrl+enter", "shift+enter", "ctrl+h", "ctrl+i", "ctrl+m", "ctrl+a"}
    for action in [*keys.screen_actions(name), *keys.app_actions(PorosApp.BINDINGS)]:
        assert not forbidden & set(action.keys.split(",")), action


def test_a_screen_s_own_styles_reach_no_other_screen():
    sheets = [path for path in STYLES.glob("*.tcss") if path.name != "app.tcss"]
    selectors = [
        (path.stem, selector.strip())
        for path in sheets
        for rule in re.sub(
            r"/\*.*?\*/|\{.*?\}", "\n", path.read_text("utf-8"), flags=re.S
        ).splitlines()
        for selector in rule.split(",")
        if selector.strip()
    ]
    assert {"config", "train"} <= {stem for stem, _ in selectors}
    classes = ("Screen", "Dialog")
    assert [s for s in selectors if not re.split(r"[ .#]", s[1])[0].endswith(classes)] == []


@piloted(mode="runs")
async def test_every_action_is_in_the_palette(app, pilot):
    await pilot.press("ctrl+p")
    await pilot.pause()
    offered = {hit.display async for hit in Actions(app.screen).discover()}
    assert offered == {action.title for action in keys.all_actions(list(PorosApp.BINDINGS))}
    assert len(offered) > 50


@piloted(mode="runs", make=lambda: app_of(settings=Settings(keys={"runs.mark": "f4"})))
async def test_the_palette_begins_with_the_screen_s_own_actions_and_names_their_keys(app, pilot):
    await pilot.press("ctrl+p")
    await pilot.pause()
    own = [action.title for action in keys.screen_actions("runs")]
    found = [hit async for hit in Actions(app.screen).discover()]
    assert [hit.display for hit in found[: len(own)]] == own
    assert [hit.help for hit in found[:2]] == ["key: f4", "key: c"]
    assert next(hit.help for hit in found if hit.display == "Go to Home") == "key: 1"


@piloted(mode="home")
async def test_an_action_of_another_screen_goes_there_first(app, pilot):
    mark = next(a for a in keys.screen_actions("runs") if a.id == "runs.compare")
    await app.perform(mark)
    await pilot.pause()
    assert app.current_mode == "runs"
    assert any(note.message.startswith("Mark one run") for note in app._notifications)


@piloted(mode="runs")
async def test_a_question_mark_explains_the_focused_field_and_names_the_keys(app, pilot):
    await pilot.press("question_mark")
    await pilot.pause()
    assert isinstance(app.screen, HelpDialog)
    told = "\n".join(str(part.content) for part in app.screen.query(Static))
    assert TERMS["run"] in told
    assert "Compare with the marked run" in told
    assert "Leave Poros" in told
    await pilot.press("escape")
    assert not isinstance(app.screen, HelpDialog)


@piloted(mode="result")
async def test_what_a_key_does_hangs_beside_it_in_the_help_and_is_told_once(app, pilot):
    await pilot.press("question_mark")
    await pilot.pause()
    lines = str(app.screen.query(Static)[2].content).splitlines()
    assert lines[-1].strip().startswith("1 to 8")
    assert sum(line.split()[0] == "esc" for line in lines) == 1
    going_on = [line for line in lines if line.startswith(" " * 8)]
    assert [line.strip() for line in going_on] == ["model folder"]


def test_a_key_that_only_a_user_moved_from_the_screen_is_still_told_as_the_app_s():
    escape = ("esc", "Leave a field, or a part that is shown alone")
    assert escape not in keys.told("result", PorosApp.BINDINGS, {})
    assert escape in keys.told("result", PorosApp.BINDINGS, {"chat.back": "f9"})


@piloted(mode="train", size=(80, 24))
async def test_help_that_is_longer_than_the_window_is_scrolled_by_the_arrows(app, pilot):
    await pilot.press("question_mark")
    await pilot.pause()
    await pilot.pause()
    scrolled, last = app.screen.query_one(VerticalScroll), app.screen.query(Static).last()
    assert last.region.bottom <= 24
    assert last.render().plain == "arrow keys show more   esc closes"
    await pilot.press("down", "down")
    await pilot.pause()
    assert scrolled.scroll_offset.y == 2


@piloted(size=(60, 24))
async def test_no_key_of_the_footer_is_cut_and_help_is_always_there(app, pilot):
    for width in (60, 80, 120):
        await pilot.resize_terminal(width, 24)
        for name in MODES:
            await at(app, pilot, name)
            await pilot.pause()
            footer = app.screen.query_one(KeyLine)
            shown = list(footer.query(FooterKey))
            assert {"explain", "leave"} <= {key.action for key in shown}, name
            assert shown[-1].virtual_region.right <= width + 1, name


@piloted(mode="model")
async def test_escape_leaves_a_field_for_the_list_and_keeps_a_list(app, pilot):
    await pilot.press("slash")
    await pilot.pause()
    assert isinstance(app.focused, Input)
    await pilot.press("escape", "down")
    chosen = app.screen.query_one(EntryList)
    assert app.focused is chosen
    await pilot.press("escape")
    assert app.focused is chosen


@piloted(mode="home")
async def test_a_key_that_would_do_nothing_says_so_and_is_not_in_the_footer(app, pilot):
    await pilot.pause()
    actions = {key.action for key in app.screen.query(FooterKey)}
    assert "choose('demo')" in actions
    assert "choose('resume')" not in actions
    await pilot.press("g")
    assert any("nothing to go on with" in note.message for note in app._notifications)


@piloted(size=(59, 24))
async def test_a_window_that_is_too_small_says_so_until_it_is_larger(app, pilot):
    notice = app.screen.query_one("#too-small")
    assert notice.display
    await pilot.resize_terminal(60, 20)
    await app.tick()
    assert not notice.display
    assert app.screen.has_class("-narrow", "-short")
    await pilot.resize_terminal(120, 40)
    await app.tick()
    assert app.screen.has_class("-wide", "-tall")
    assert not app.screen.has_class("-narrow")


@piloted(size=(80, 24))
async def test_another_size_styles_the_screen_s_parts_once(app, pilot):
    styled, update = [], app.update_styles
    app.update_styles = lambda node, **named: (styled.append(node), update(node, **named))
    await pilot.resize_terminal(120, 40)  # two classes go, two come
    await pilot.pause()
    assert app.screen.has_class("-wide")
    assert app.screen.has_class("-tall")
    assert styled.count(app.screen) == 1


@piloted(make=lambda: app_of(settings=Settings(theme="light", keys={"app.theme": "f4"})))
async def test_theme_and_keys_are_the_user_s(app, pilot):
    assert app.theme == "light"
    await pilot.press("f2")
    assert app.theme == "light"
    await pilot.press("f4")
    assert app.theme == "ansi-dark"


class GoingOn:
    """A run whose process is there."""

    folder, is_going, run = Path("/home/ada/poros/run"), True, RunState()
    caught_up, is_behind, is_starting, unread = True, False, False, ""

    def tick(self):
        return False

    def watch(self, wanted):
        self.wanted = wanted

    live = ending = None
    process = "running"

    def close(self):
        self.closed = True


def with_a_run():
    app = app_of()
    app.state.followed = GoingOn()
    return app


@piloted(make=with_a_run)
async def test_leaving_a_run_asks_and_enter_leaves_it_running(app, pilot):
    await pilot.press("q")
    assert isinstance(app.screen, ConfirmDialog)
    await pilot.press("escape")
    assert app.is_running
    assert not isinstance(app.screen, ConfirmDialog)
    await pilot.press("ctrl+q", "ctrl+q", "enter")
    await pilot.pause()
    assert app.return_code == 0
    assert app.last_words == "The run goes on: poros-tui attach /home/ada/poros/run"


@piloted(make=with_a_run)
async def test_ctrl_c_asks_and_a_second_one_stops_and_saves(app, pilot):
    orders = []

    def order(command, then=None):
        orders.append(command)
        then(Answer(taken=True, detail=""))

    app.runs.order = order
    await pilot.press("ctrl+c")
    assert isinstance(app.screen, ConfirmDialog)
    assert orders == []
    await pilot.press("ctrl+c")
    await pilot.pause()
    assert orders == ["stop"]
    assert "with a checkpoint, in /home/ada/poros/run" in app.last_words


@piloted(make=with_a_run)
async def test_a_run_that_takes_no_order_is_not_left(app, pilot):
    app.runs.order = lambda command, then=None: then(Answer(taken=False, detail="nobody answers"))
    await pilot.press("q", "s")
    await pilot.pause()
    assert app.return_code is None
    assert [note.message for note in app._notifications] == ["nobody answers"]


def test_what_is_wrong_in_the_settings_is_told_and_the_rest_is_taken(tmp_path):
    file = tmp_path / "app.yaml"
    file.write_text("theme: pink\ncolour: 3\nkeys:\n  app.theme: f4\n  app.quit: 7\n")
    chosen = load_settings(file)
    assert (chosen.theme, chosen.keys) == ("dark", {"app.theme": "f4"})
    assert len(chosen.problems) == 3
    assert "none of dark, light" in " ".join(chosen.problems)
    file.write_text("theme: [\n")
    assert len(load_settings(file).problems) == 1
    assert load_settings(tmp_path / "nothing.yaml") == Settings()


def test_state_is_kept_and_a_damaged_file_is_as_good_as_none(tmp_path):
    state = AppState()
    state.update(model="a/b", run_folder=tmp_path, values={"seed": 3})
    assert state.is_dirty
    file = tmp_path / "deep" / "app.json"
    save_state(state.to_json(), file)
    again = load_state(file)
    assert (again.model, again.run_folder, again.values) == ("a/b", tmp_path, {"seed": 3})
    assert again.recent_models == ["a/b"]
    file.write_text('{"model": 3, "recent_models": "x"}')
    assert load_state(file) == AppState()
    file.write_text("{")
    assert load_state(file) == AppState()


def test_numbers_are_told_as_people_read_them():
    assert [words.of_gigabytes(n, 151e9) for n in (0, 38e6, 5.12e9)] == [
        "0 of 151 GB",
        "38 MB of 151 GB",
        "5.1 of 151 GB",
    ]
    assert [words.gigabytes(n) for n in (900, 42_000, 38e6, 1.9e9, 2.12e11)] == [
        "900 bytes", "42 kB", "38 MB", "1.9 GB", "212 GB",
    ]  # fmt: skip
    assert [words.duration(s) for s in (12, 200, 5040, 180_000, float("inf"))] == [
        "12 s", "3 min 20 s", "1 h 24 min", "2 d 2 h", "unknown",
    ]  # fmt: skip
    assert words.shortened("abcdefghij", 5) == "ab…ij"
    path = "/home/ada/cache/models/smollm2-135m-instruct"
    assert [words.shortened(path, room) for room in (20, 24, 30, 40, 60)] == [
        "/home/a…35m-instruct", "…/smollm2-135m-instruct", "/home/a…/smollm2-135m-instruct",
        "/home/ada/cac…dels/smollm2-135m-instruct", path,
    ]  # fmt: skip
    assert words.safe("a\x1b[2Jb\nc") == "a [2Jb c"


def test_plain_signs_are_ascii_and_of_one_column(monkeypatch):
    monkeypatch.setenv("POROS_ASCII", "1")
    plain = glyphs.chosen()
    assert plain.is_plain
    signs = [getattr(plain, name) for name in glyphs.Glyphs.__dataclass_fields__]
    assert [sign for sign in signs if len(sign) != 1 or not sign.isascii()] == []


SIGNALS = ("success", "accent", "warning", "secondary", "foreground", "error")


def grey_of(app, name):
    return Color.parse(app.theme_variables[name]).monochrome


@pytest.mark.parametrize("theme", [theme.name for theme in OWN])
def test_without_colours_what_is_wrong_stands_out_most(theme, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")

    @piloted(make=lambda: app_of(settings=Settings(theme=theme)))
    async def look(app, pilot):
        ground = grey_of(app, "background")
        contrast = {
            name: abs(grey_of(app, name).brightness - ground.brightness) for name in SIGNALS
        }
        assert max(contrast, key=contrast.get) == "error"

    look()


def test_the_header_tells_the_runs_own_card_while_it_goes_on():
    device = dataclasses.replace(scenes.sample().device, total=48 * 10**9, used=40 * 10**9)
    live = dataclasses.replace(scenes.sample(), device=device)
    run = scenes.TellRun(made_runs.trained(100).lines, live=live)
    app = scenes.app_with(run)
    app.state.machine = MACHINE  # as the app's first card is seen
    assert app.summary().facts[0] == "VRAM 40.0 of 48.0 GB"
    run.ending = Ending("finished", 0, "")
    assert app.summary().facts[0] == "VRAM 1.9 of 12.3 GB"


@pytest.mark.parametrize("above", ["question_mark", "ctrl+p"])
@pytest.mark.parametrize("key", ["ctrl+q", "ctrl+c"])
def test_ctrl_q_and_ctrl_c_leave_from_a_dialog_and_from_the_palette(key, above):
    @piloted()
    async def leave(app, pilot):
        left = []
        app.runs.leave = lambda: left.append("left")
        below = app.screen
        await pilot.press(above)
        await pilot.pause()
        assert app.screen is not below
        await pilot.press(key)
        assert left == ["left"]

    leave()
