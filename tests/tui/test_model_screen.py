"""The Model screen: suggested, searched, looked at, taken or refused; what fits."""

from dataclasses import asdict
from pathlib import Path

import pytest
from textual.widgets import Input

from poros.demo_settings import train_path
from poros.model_suggestion import Suggestion
from poros_tui.engine.machine import Machine
from poros_tui.engine.tasks import Task
from poros_tui.screens.model_facts import cell_words, facts, parts, verdict
from poros_tui.state import AppState
from poros_tui.widgets.entry_list import EntryList
from poros_tui.widgets.fit_table import FitTable
from poros_tui.widgets.path_dialog import Found, PathDialog, list_data, list_models
from tests.tui.pilot import MACHINE, app_of, at, piloted
from tests.tui.recorded import RecordedTask, answers
from tests.tui.scenes import model as scenes


def text(app, of):
    return str(app.screen.query_one(of).render())


def keys_of(app):
    return [entry.key for entry in app.screen.query_one(EntryList)._entries if entry.key]


def said(**by_command):
    """An app with recorded answers, and what it asked."""
    asked = []
    by = {"models --json": lambda words: RecordedTask(words, [scenes.suggested()])}
    names = {"hub": "models --hub", "listing": "models --json"}
    by |= {names.get(name, name): answer for name, answer in by_command.items()}
    return asked, lambda **state: app_of(AppState(**state), make_task=answers(by, asked))


def test_a_model_is_chosen_looked_at_and_taken_by_enter():
    asked, make = said(check=lambda words: RecordedTask(words, [scenes.report()]))

    @piloted(mode="model", make=make)
    async def run(app, pilot):
        assert keys_of(app)[:2] == ["demo:", "Qwen/Qwen2.5-1.5B-Instruct"]
        await pilot.press("down", "enter")
        command = asked[-1]
        assert command[:2] == ("check", "Qwen/Qwen2.5-1.5B-Instruct")
        assert command[command.index("--vram") + 1] == "10.382"
        await at(app, pilot, "model")
        assert "Can be trained" in text(app, "#model-verdict .said")
        assert app.state.model == ""
        fit = app.screen.query_one(FitTable)
        assert fit.table["columns"][fit.column]["here"]
        assert fit.table["lengths"][fit.row] == 2048
        await pilot.press("right", "right", "down", "down")
        await pilot.pause()
        assert "8,192 tokens on a 6 GB card" in text(app, "#model-cell")
        assert "Tight" in text(app, "#model-cell")
        await pilot.press("enter")
        assert (app.state.model, app.current_mode) == ("Qwen/Qwen2.5-1.5B-Instruct", "data")
        assert "model" in app.state.done

    run()


def test_a_refused_model_is_told_with_its_way_out_and_not_taken():
    _, make = said(check=lambda words: RecordedTask(words, [scenes.gated()], exit_code=5))

    @piloted(mode="model", make=lambda: make(model=scenes.GATED))
    async def run(app, pilot):
        await at(app, pilot, "model")
        assert "Not yet: its owner wants you to accept terms" in text(app, "#model-verdict .said")
        await pilot.press("c")
        assert f"https://huggingface.co/{scenes.GATED}" in app.clipboard
        await pilot.press("enter")
        assert app.current_mode == "model"
        await pilot.press("b")
        assert app.screen.query_one("#model-choose").display

    run()


def test_typing_filters_searches_the_hub_and_takes_a_name_as_it_is():
    found = [asdict(Suggestion("a/b", "a/b", "hub", "qwen2", "certified"))]
    error = {"error": {"message": "the Hub can't be reached", "remediation": "check the network"}}
    answer = iter([[found], [error]])
    asked, make = said(
        hub=lambda words: RecordedTask(words, next(answer)),
        check=lambda words: RecordedTask(words, goes_on=True),
    )

    @piloted(mode="model", make=make)
    async def run(app, pilot):
        await pilot.press("slash", *"gemma", "down")
        assert {key.split("/")[0] for key in keys_of(app)[:-1]} == {"google"}
        assert keys_of(app)[-1] == "search:gemma"
        await pilot.press("end", "enter")
        await at(app, pilot, "model")
        assert asked[-1] == ("models", "--hub", "gemma", "--json")
        assert "a/b" in keys_of(app)
        await pilot.press("end", "enter")
        await at(app, pilot, "model")
        assert "can't be reached" in text(app, "#model-verdict .said")
        assert "check the network" in text(app, "#model-verdict .way-out")
        field = app.screen.query_one(Input)
        field.value = "my/own-model"
        await pilot.pause()
        assert keys_of(app)[0] == "typed:my/own-model"
        await pilot.press("slash", "enter")
        assert asked[-1][1] == "my/own-model"
        await app.tick()
        assert "Looking at my/own-model" in text(app, "#model-verdict .said")
        app.screen.set_focus(None)
        await pilot.press("x")
        await at(app, pilot, "model")
        assert "Cancelled" in text(app, "#model-verdict .said")

    run()


@pytest.mark.parametrize(
    "answer", [[{"error": {"message": "the Hub can't be reached", "remediation": ""}}], [[]]]
)
def test_a_search_without_a_result_gives_the_list_back_until_another_word_is_typed(answer):
    _, make = said(hub=lambda words: RecordedTask(words, answer))

    @piloted(mode="model", make=lambda: make(recent_models=["/home/ada/own"]))
    async def run(app, pilot):
        whole = [key for key in keys_of(app) if key != "demo:"]
        assert "/home/ada/own" in whole
        await pilot.press("slash", *"lama7")
        assert keys_of(app) == ["search:lama7"]
        await pilot.press("enter")
        await at(app, pilot, "model")
        assert keys_of(app) == [*whole, "search:lama7"]
        await pilot.press("slash", "end", "b")
        assert keys_of(app) == ["search:lama7b"]

    run()


def said_of_the_demo():
    """The demo's model is here once it was fetched."""
    demo = asdict(Suggestion("/cache/demo", "the demo's model", "here", "llama", is_demo=True))
    lists = iter([scenes.suggested(), [demo]])
    return said(
        listing=lambda words: RecordedTask(words, [next(lists)]),
        demo=lambda words: RecordedTask(words, []),
        check=lambda words: RecordedTask(words, [scenes.report()]),
    )


def test_the_demos_model_is_fetched_and_brings_its_data():
    asked, make = said_of_the_demo()

    @piloted(mode="model", make=make)
    async def run(app, pilot):
        await pilot.press("enter")
        for _ in range(3):
            await at(app, pilot, "model")
        assert [command[0] for command in asked] == ["models", "demo", "models", "check"]
        await pilot.press("enter")
        assert (app.state.model, app.state.data) == ("/cache/demo", str(train_path()))

    run()


def test_a_model_that_is_asked_for_after_the_demos_was_fetched_stays():
    asked, make = said_of_the_demo()

    @piloted(mode="model", make=make)
    async def run(app, pilot):
        await pilot.press("enter")
        while asked[-1] != ("models", "--json") or len(asked) < 3:
            await app.tick()
        app.screen.ask("my/own-model")
        await at(app, pilot, "model")
        assert keys_of(app) == ["/cache/demo"]
        assert app.screen.asked == "my/own-model"
        assert [command[1] for command in asked if command[0] == "check"] == ["my/own-model"]

    run()


def test_the_dialog_finds_models_and_data_and_takes_a_typed_path(tmp_path):
    (tmp_path / "a-model").mkdir()
    (tmp_path / "a-model" / "config.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}\n" * 300)
    (tmp_path / "notes.txt").write_text("")
    assert [(one.name, one.is_choice) for one in list_models(tmp_path)] == [
        ("a-model", True), ("folder", False)
    ]  # fmt: skip
    assert list_data(tmp_path)[0] == Found("rows.jsonl", True, "900 bytes")
    chosen = []

    @piloted()
    async def run(app, pilot):
        for keys in (["enter"], ["down", "enter", "backspace", "up", "enter"], ["escape"]):
            app.push_screen(PathDialog("A", "B", tmp_path, list_models), chosen.append)
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
        app.push_screen(PathDialog("A", "B", tmp_path, list_data), chosen.append)
        await pilot.pause()
        app.screen.query_one(Input).value = str(tmp_path / "nowhere")
        await pilot.press("slash", "enter")
        await pilot.pause()
        assert "No such file" in text(app, "#path-hint")
        app.screen.query_one(Input).value = str(tmp_path / "rows.jsonl")
        await pilot.press("slash", "enter")
        await pilot.pause()

    run()
    model = str(tmp_path / "a-model")
    assert chosen == [model, model, "", str(tmp_path / "rows.jsonl")]


def test_files_that_hardly_have_rows_are_marked_and_come_last(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    (tmp_path / "b.csv").write_bytes(b"PK\x03\x04\0\0")
    (tmp_path / "c.jsonl").write_text('{"text": "T"}\n')
    (tmp_path / "d.parquet").write_bytes(b"PAR1\0")
    told = [(one.name, one.note, one.is_doubtful) for one in list_data(tmp_path)]
    assert told == [
        ("c.jsonl", "14 bytes", False),
        ("d.parquet", "5 bytes", False),
        ("a.jsonl", "empty", True),
        ("b.csv", "no text", True),
    ]


def test_what_is_short_of_room_is_told():
    small = Machine(ram_free_bytes=4 * 10**9, disk_free_bytes=10**9)
    told = {fact.label: fact for fact in facts(scenes.report(), small)}
    assert told["download"].state == "bad"
    assert (told["RAM"].state, "from disk" in told["RAM"].text) == ("warn", True)
    roomy = {fact.label: fact.state for fact in facts(scenes.report(), MACHINE)}
    assert roomy["download"] == roomy["RAM"] == ""


@pytest.mark.parametrize(
    ("labels", "state"),
    [("certified", "ok"), ("experimental", "warn"), ("user-asserted", "warn")],
)
def test_a_label_is_a_verdict(labels, state):
    record = scenes.report()
    found = verdict(record | {"labels": record["labels"] | {"architecture": labels}})
    assert found.state == state


def test_the_bars_add_up_to_what_the_cell_says():
    table = scenes.report()["table"]
    cell = table["cells"][2][0]
    low, high = cell["device_bytes"]
    assert low < sum(size for _, size in parts(cell)) < high
    assert "fits this card" not in cell_words(table, 5, 1)[1]
    assert "Does not fit" in cell_words(table, 5, 1)[1]


def test_what_a_run_took_is_told_in_place_of_the_estimate():
    record = scenes.report()
    run = {"card": "c", "tokens": 355, "rank": 16, "device_bytes": 1_930_000_000, "step_s": 0.8}
    runs = [run | {"ran_out": False}, run | {"tokens": 9000, "ran_out": True, "step_s": None}]
    told = {fact.label: fact.text for fact in facts(record | {"measured": runs}, MACHINE)}
    assert told["measured"] == "355 tokens took 1.9 GB, 0.8 s a step"
    table = record["table"]
    cell = table["cells"][0][0] | {
        "measured": True, "device_bytes": [2_500_000_000] * 2, "step_s": [0.5] * 2
    }  # fmt: skip
    cells = [[cell, *table["cells"][0][1:]], *table["cells"][1:]]
    said = cell_words(table | {"cells": cells}, 0, 0)[1]
    assert said.startswith("A run here took 2.5 GB, 0.5 s a step; ")


@pytest.mark.long
def test_the_real_commands_fill_the_screen(tmp_path):
    from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers

    folder = write_headers(Path(tmp_path) / "m", QWEN_7B, qwen_tensors(QWEN_7B))

    @piloted(mode="model", make=lambda: app_of(AppState(model=str(folder)), make_task=Task))
    async def run(app, pilot):
        for _ in range(400):
            await pilot.pause(0.05)
            await app.tick()
            if app.screen.record is not None and keys_of(app):
                break
        assert "Can be trained" in text(app, "#model-verdict .said")
        assert app.screen.query_one(FitTable).cell["verdict"] == "fits"

    run()
