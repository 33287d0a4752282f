"""The wizard on the screen: keys, effects, problems and their mending, files, the start."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Collapsible, Input, Static
from textual.widgets._footer import FooterKey

from poros.config_load import load_config
from poros.demo_settings import train_path
from poros_tui import run_control
from poros_tui.app import PorosApp
from poros_tui.engine.process import Engine
from poros_tui.engine.way_out import WayOut
from poros_tui.screens import config_start
from poros_tui.screens.config import EFFORT, ConfigScreen
from poros_tui.screens.config_cost import Computer, Cost
from poros_tui.screens.config_facts import ModelFacts
from poros_tui.screens.config_preview import PathDialog, PreviewDialog
from poros_tui.screens.config_rows import Row
from poros_tui.screens.config_told import cost_line
from poros_tui.screens.train_orders import Orders
from poros_tui.state import AppState
from poros_tui.widgets.confirm import ConfirmDialog
from tests.tui.config_fixtures import DATA, MODEL, Unanswered, known, wizard_app
from tests.tui.pilot import app_of, piloted
from tests.tui.result_fixtures import until
from tests.tui.scenes.config import small_card


def config(make: Any = wizard_app, size: tuple[int, int] = (100, 30)) -> Any:
    return piloted(mode="config", size=size, make=make)


def row_of(screen: ConfigScreen, key: str) -> Row:
    return screen.rows[key]


def said(screen: ConfigScreen, id: str) -> str:
    return str(screen.query_one(f"#{id}", Static).content)


async def typed(pilot: Pilot[Any], text: str) -> None:
    await pilot.press(*("full_stop" if c == "." else "minus" if c == "-" else c for c in text))


@config()
async def test_enter_goes_through_the_questions_to_the_button(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    assert screen._key == EFFORT  # model and data were chosen before
    row_of(screen, "model_name_or_path").take_keyboard()
    await pilot.pause()
    keys = []
    for _ in range(5):
        keys.append(screen._key)
        await pilot.press("enter")
    assert keys == ["model_name_or_path", "dataset", EFFORT, "?card", "output_dir"]
    assert isinstance(app.focused, Button)
    assert "ready, and it fits" in said(screen, "verdict")


@config()
async def test_an_arrow_draws_again_only_what_it_changes(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    keys = list(screen.query(FooterKey))
    told = {id: screen.query_one(f"#{id}", Static).content for id in ("cost", "meaning", "verdict")}
    about = said(screen, "about")
    await pilot.press("down")
    assert said(screen, "about") != about
    assert keys
    assert list(screen.query(FooterKey)) == keys  # the same ones: none was made anew
    assert all(screen.query_one(f"#{id}", Static).content is told[id] for id in told)


@config()
async def test_enters_that_come_at_once_skip_no_question(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    row_of(screen, "model_name_or_path").take_keyboard()
    await pilot.pause()
    await pilot.press("enter")
    await until(app, pilot, lambda: screen._key == "dataset")
    row = row_of(screen, "dataset")
    for _ in range(3):
        row.post_message(Row.Done(row))
    await pilot.pause()
    assert screen._key == EFFORT


@config()
async def test_a_key_meant_for_another_screen_replaces_no_answer(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    await pilot.press("4")
    assert app.current_mode == "data"
    assert screen.wizard.model == MODEL


@config()
async def test_what_other_screens_chose_stands_in_the_form(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    assert row_of(screen, "model_name_or_path").text == MODEL
    assert row_of(screen, "dataset").text == DATA
    assert row_of(screen, "output_dir").text == "harbour-voice-run"
    app.state.update(data="other.jsonl", model="elsewhere/model")
    await app.tick()
    await pilot.press("tab")
    await app.tick()
    assert row_of(screen, "dataset").text == "other.jsonl"
    assert row_of(screen, "output_dir").text == "other-run"


@config()
async def test_arrows_change_an_answer_and_the_costs_follow(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    before = said(screen, "cost")
    await pilot.press("right")
    assert screen.wizard.effort == "thorough"
    assert said(screen, "cost") != before
    assert "453" in said(screen, "cost")
    await pilot.press("down")
    assert screen._key == "?card"
    await pilot.press("up", "left", "left")
    assert screen.wizard.effort == "quick look"


@config()
async def test_a_section_opens_with_each_settings_effect(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    section = screen.query_one("#group-data", Collapsible)
    assert not section.query(Row)
    section.collapsed = False
    await pilot.pause()
    row = row_of(screen, "max_seq_length")
    row.take_keyboard()
    await pilot.pause()
    assert "If 4096: " in said(screen, "about")
    row.query_one(Input).value = ""
    await typed(pilot, "4096")
    assert screen.checked.config is not None
    assert screen.checked.config.max_seq_length == 4096
    assert "1 changed" in section.title
    await pilot.press("ctrl+r")
    assert screen.checked.config.max_seq_length == 2048
    assert row.text == "2048"


@config(size=(80, 24))
async def test_a_folded_section_says_what_it_holds_and_what_enter_does(
    app: PorosApp, pilot: Any
) -> None:
    screen = await known(app, pilot)
    for group, section in screen.sections.items():
        section.query_one("CollapsibleTitle").focus()
        await pilot.pause()
        about = said(screen, "about")
        assert about.endswith(". Enter opens and folds it."), group


def test_no_name_of_a_cost_stands_without_its_value() -> None:
    """Where all of it has no room on one line."""
    computer = Computer(total_bytes=12_300_000_000, card="a card")
    found = Cost(device_bytes=10_100_000_000, host_bytes=8_400_000_000, num_steps=151)
    whole = "card 10.1 of 12.3 GB   RAM 8.4 GB   steps 151   data cut 37 of 1,204 samples"
    assert str(cost_line(found, computer, "cut 37 of 1,204 samples", len(whole))) == whole
    lines = str(cost_line(found, computer, "cut 37 of 1,204 samples", len(whole) - 1)).split("\n")
    assert lines == [whole[: whole.index("   data")], "data cut 37 of 1,204 samples"]


@config()
async def test_all_settings_are_reachable(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    await pilot.press("f8")
    await pilot.pause()
    shown = {row.key for row in screen.query(Row)}
    assert shown >= set(type(screen.checked.config).model_fields)
    await pilot.press("f8")
    assert all(section.collapsed for section in screen.query(Collapsible))


@config(size=(80, 24))
async def test_every_problem_is_told_and_f7_mends_one_after_the_other(
    app: PorosApp, pilot: Any
) -> None:
    screen = await known(app, pilot)
    for key, text in (("lora_rank", "0"), ("lr_scheduler", "cosin")):
        screen.wizard.enter(key, text)
    screen.show_all()
    assert "2 things to mend" in said(screen, "verdict")
    assert "lora_rank" in said(screen, "problems")
    assert "lr_scheduler" in said(screen, "problems")
    await pilot.press("f5")
    await pilot.pause()
    assert screen._key == "lora_rank"
    assert app.current_mode == "config"
    await pilot.press("f7", "f7")
    assert "ready" in said(screen, "verdict")
    assert not screen.query_one("#problems-panel").display


@config(lambda: wizard_app(model="", data=""))
async def test_missing_answers_are_told_in_words(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    told = said(screen, "problems")
    assert "No model is chosen" in told
    assert "press 4 for Data" in told


@config(small_card)
async def test_what_does_not_fit_is_asked_before_it_starts(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    screen.wizard.enter("max_seq_length", "16384")
    screen.show_all()
    assert "not expected to fit" in said(screen, "verdict")
    await pilot.press("f5")
    assert isinstance(app.screen, ConfirmDialog)
    await pilot.press("b")
    assert app.screen is screen
    await pilot.press("f7")
    assert "max_seq_length" not in screen.wizard.own


@config()
async def test_a_model_that_is_not_checked_yet_is_not_ready(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    assert "ready" in said(screen, "verdict")
    app.draft.lookups.models = Unanswered(None)
    row_of(screen, "model_name_or_path").take_keyboard()
    await pilot.press("x")
    await pilot.press("f5")
    assert isinstance(app.screen, ConfirmDialog)
    assert "the model is being looked at. Start all the same?" in app.screen._question
    await pilot.press("b")
    assert "not checked yet: the model" in said(screen, "verdict")
    app.draft.lookups.models.put(f"{MODEL}x", ModelFacts(told="no such model", is_wrong=True))
    await app.tick()
    assert said(screen, "verdict").endswith("the model: no such model")
    await pilot.press("f5")
    assert app.current_mode == "config"
    assert "no such model" in [note.message for note in app._notifications][-1]


def test_the_change_that_mends_a_run_stands_in_the_form(tmp_path: Path) -> None:
    told = f"model_name_or_path: {MODEL}\ndataset: {DATA}\nlearning_rate: 0.01\n"
    (tmp_path / "config.yaml").write_text(told)

    @config()
    async def run(app: PorosApp, pilot: Any) -> None:
        screen = await known(app, pilot)
        train = SimpleNamespace(
            followed=SimpleNamespace(folder=tmp_path), shell=app, notify=app.notify
        )
        change = WayOut(("learning_rate=0.001",), goes_on=False)
        Orders(cast(Any, train)).apply(change)
        await app.tick()
        assert screen.checked.config is not None
        assert screen.checked.config.learning_rate == 0.001
        assert row_of(screen, "output_dir").text == f"{tmp_path}-2"

    run()


@config()
async def test_the_preview_has_file_command_and_changes(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    screen.wizard.enter("lora_rank", "64")
    screen.show_all()
    await pilot.press("f6")
    assert isinstance(app.screen, PreviewDialog)
    told = str(app.screen._content())
    assert "lora_rank: 64" in told
    assert "16 to 64" in told
    assert "poros train" in told
    await pilot.press("escape")
    assert app.screen is screen


def test_a_saved_file_is_the_config_and_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"

    @config()
    async def saved(app: PorosApp, pilot: Any) -> None:
        screen = await known(app, pilot)
        screen.wizard.enter("lora_rank", "64")
        screen.show_all()
        await pilot.press("ctrl+s")
        assert isinstance(app.screen, PathDialog)
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        assert load_config(path, environ={}).config == screen.checked.config
        assert screen.files.saved_path(screen.checked.config.model_dump()) == path
        assert app.state.config_path == path

    @config()
    async def opened(app: PorosApp, pilot: Any) -> None:
        path.write_text(path.read_text() + "wand_length: 3\n")
        screen = await known(app, pilot)
        await pilot.press("ctrl+o")
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await pilot.pause()
        assert screen.checked.config.lora_rank == 64
        assert screen.wizard.effort == "as it was"
        assert any("wand_length" in str(n.message) for n in app._notifications)
        row_of(screen, EFFORT).post_message(Row.Entered(EFFORT, "thorough"))
        await pilot.pause()
        assert screen.checked.config.num_epochs == 3

    saved()
    opened()


def test_the_start_writes_the_file_and_goes_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    began: list[Path] = []

    def start(path: Path, **options: object) -> Engine:
        began.append(path)
        return Engine(tmp_path / "harbour-voice-run")

    monkeypatch.setattr(run_control, "start_run", start)

    @config()
    async def run(app: PorosApp, pilot: Any) -> None:
        screen = await known(app, pilot)
        wanted = screen.checked.config
        await pilot.press("f5")
        for _ in range(1000):
            await pilot.pause(0.05)
            await app.tick()
            if app.current_mode == "train":
                break
        assert app.current_mode == "train"
        assert app.state.run_folder == tmp_path / "harbour-voice-run"
        assert "config" in app.state.done
        assert began == [Path("harbour-voice-run.yaml")]
        assert load_config(began[0], environ={}).config == wanted

    run()


def test_a_start_that_fails_is_told_and_nothing_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text("mine: 1\n")
    settings = {"model_name_or_path": "m", "dataset": "d.jsonl", "output_dir": "run"}
    assert config_start.written_beside(settings) == Path("run-2.yaml")
    assert (tmp_path / "run.yaml").read_text() == "mine: 1\n"

    def refuse(path: Path, **options: object) -> Engine:
        raise OSError(28, "No space left on device", "there")

    monkeypatch.setattr(run_control, "start_run", refuse)

    @config(lambda: wizard_app(values={"output_dir": "run"}))
    async def run(app: PorosApp, pilot: Any) -> None:
        await known(app, pilot)
        await pilot.press("f5")
        for _ in range(1000):
            await pilot.pause(0.05)
            await app.tick()
            if app._notifications:
                break
        told = next(n for n in app._notifications if "could not be started" in str(n.title))
        assert told.message == "No space left on device: there"
        assert app.current_mode == "config"

    run()


@config(lambda: wizard_app(data=str(train_path())))
async def test_the_demo_brings_its_own_settings(app: PorosApp, pilot: Any) -> None:
    screen = await known(app, pilot)
    assert screen.checked.config is not None
    assert screen.checked.config.max_steps == 40
    assert screen.checked.config.output_dir.startswith("poros_demo")
    assert screen.wizard.effort == "the demo's own"


def test_the_file_of_the_command_line_is_what_config_shows(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("model_name_or_path: some/model\ndataset: rows.jsonl\nlora_rank: 7\n")

    @config(lambda: app_of(AppState(config_to_open=path)))
    async def opened(app: PorosApp, pilot: Any) -> None:
        screen = app.screen
        assert isinstance(screen, ConfigScreen)
        assert (screen.wizard.model, screen.wizard.dataset) == ("some/model", "rows.jsonl")
        assert screen.wizard.form().texts["lora_rank"] == "7"
        assert (app.state.config_to_open, app.state.config_path) == (None, path)

    opened()
