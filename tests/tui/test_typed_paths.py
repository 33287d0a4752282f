"""What a person types or pastes where a path is asked for may be any text, and ends no app."""

import asyncio
import os
from pathlib import Path

import pytest
from textual.widgets import Input

from poros import rows, run_folder, starting_runs
from poros.errors import PorosDataError, PorosModelError
from poros.home_paths import typed_path
from poros.hub_names import parse_model
from poros_tui import headless
from poros_tui.screens.config_facts import look_at_data
from poros_tui.screens.config_wizard import _place_problem
from tests.tui.pilot import app_of, at, begun_at

ANY_TEXT = ["~nosuchuser/rows.jsonl", "x" * 300, "/" + "x/" * 3000, "a\0b.jsonl"]


@pytest.mark.parametrize("text", ANY_TEXT[:3])
def test_a_run_in_such_a_folder_is_noted_and_looked_for_like_any_other(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    headless._tell_others(Path(text))
    starting_runs.note(Path(text), os.getpid())
    assert starting_runs.starting_in(Path(text)).pid == os.getpid()
    starting_runs.forget()
    assert starting_runs.starting_in(Path(text)) is None


@pytest.mark.parametrize("text", ANY_TEXT)
def test_a_path_of_any_text_is_answered_by_a_sentence(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = typed_path(text)
    assert not any((path.exists(), path.is_dir(), path.is_file(), path.parent.is_file()))
    with pytest.raises(PorosDataError):
        rows.refuse_missing(f"./{text}" if text[0] == "x" else text)
    with pytest.raises(PorosModelError):
        parse_model(f"./{text}" if text[0] == "x" else text)
    assert look_at_data(text).told


def test_a_folder_of_somebody_that_is_not_there_is_a_problem_of_the_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _place_problem("~nosuchuser/run") is not None


@pytest.mark.parametrize("name", [".", "/"])
def test_a_free_name_is_found_beside_a_folder_without_a_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    beside = run_folder.free_name(Path(name))
    assert beside.name.endswith("-2")
    assert not beside.exists()


def test_the_home_folder_of_the_user_is_found():
    assert typed_path("~/x") == Path("~/x").expanduser()


@pytest.mark.parametrize("text", ["~nosuchuser/x", "x" * 300])
def test_any_text_in_the_dialog_that_finds_files_is_told_and_leaves_it_open(text):
    async def run():
        app = begun_at("data", app_of)
        async with app.run_test() as pilot:
            await at(app, pilot, "data")
            app.screen.action_open()
            await pilot.pause()
            dialog = app.screen
            field = dialog.query_one(Input)
            field.focus()
            field.value = text
            await pilot.press("enter")
            for _ in range(100):
                await pilot.pause(0.02)
                told = str(dialog.query_one("#path-hint").render())
                if "No such file" in told or "too long" in told:
                    break
            assert "No such file" in told or "too long" in told
            assert app.screen is dialog

    asyncio.run(run())
