"""Every binding of the app is pressed, by each of its keys, and what it does is seen."""

import ast
import asyncio
import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.widgets import Collapsible

import poros_tui
from poros_tui import keys
from poros_tui.app import PorosApp
from poros_tui.screens.base import MODES
from poros_tui.screens.result_chat import ChatPane
from poros_tui.widgets.confirm import ConfirmDialog
from poros_tui.widgets.entry_list import EntryList
from poros_tui.widgets.fit_table import FitTable
from poros_tui.widgets.steady import Choices
from tests.tui.config_fixtures import known, wizard_app
from tests.tui.listed_runs import EACH_STATE, StandingRuns
from tests.tui.pilot import app_of
from tests.tui.recorded import no_answer
from tests.tui.result_fixtures import result_app, shown
from tests.tui.scenes import data as data_scenes
from tests.tui.scenes import doctor as doctor_scenes
from tests.tui.scenes import model as model_scenes
from tests.tui.scenes import train as train_scenes
from tests.tui.stage import Row, Stage, focus, has, heard, mode, of_screen, played, said, title, top

STOP, ABORT = "Stop the training?", "Abort the training at once?"
LEAVE = "A run is going on. Leave Poros?"


def everywhere():
    """The app's own, and those of the dialogs that they open."""
    yield from (
        Row(f"go.{name}", str(number), mode, name, "escape")
        for number, name in [*enumerate(MODES, 1)][1:]
    )
    yield Row("go.home", "1", mode, "home", "escape")
    for key in ("question_mark", "f1"):
        yield Row("app.help", key, top, "HelpDialog")
        yield Row("help.close", "escape", top, "HomeScreen")
    for key in ("question_mark", "f1", "enter", "q"):
        yield Row("help.close", key, top, "HomeScreen", "f1")
    yield Row("app.palette", "ctrl+p", top, "Palette")
    for key in ("q", "ctrl+q"):
        yield Row("app.quit", key, title, LEAVE, "escape")
        yield Row("dialog.back", "escape", title, "")
    yield Row("app.theme", "f2", lambda app: app.theme, "light")
    yield Row("app.leave-field", "escape", lambda app: focus(app) == "Input", False, "3 slash")
    yield Row("go.home", "1", mode, "home", "escape")
    yield Row("app.interrupt", "ctrl+c", title, LEAVE)
    yield Row("dialog.interrupt", "ctrl+c", heard, "stop")


def home():
    yield Row("choices.choose", "enter", lambda app: heard(app)[:5], "open ")
    yield Row("home.setup", "s", mode, "doctor")
    yield Row("home.demo", "d", heard, "demo", "1")
    yield Row("home.resume", "g", heard, "go on with harbour-voice-r32")


def entry(app):
    return app.screen.query_one(EntryList).cursor


def doctor(first, last):
    """Lists too: between their first and their last row."""
    for key, cursor, before in (
        ("end", last, "home"), ("home", first, ""), ("down", first + 1, ""), ("up", first, ""),
        ("j", first + 1, ""), ("k", first, ""),
    ):  # fmt: skip
        yield Row(f"list.{LIST[key]}", key, entry, cursor, before)
    yield Row("list.page-down", "pagedown", lambda app: entry(app) > first + 5, True)
    yield Row("list.page-up", "pageup", entry, first)
    yield Row("doctor.copy", "c", heard, "copied")
    yield Row("doctor.again", "r", heard, "doctor --json-lines --row driver", "home")
    # The row that is looked at again has its answer; the next tick would take it.
    yield Row(
        "doctor.all",
        "R",
        heard,
        "doctor --json-lines",
        lambda app: setattr(app.screen, "_work", None),
    )
    yield Row("doctor.export", "e", lambda app: said(app)[:8], "Saved as")
    yield Row("doctor.next", "enter", mode, "model")


LIST = {"end": "last", "home": "first", "down": "down", "up": "up", "j": "down", "k": "up"}


def model():
    def cell(app):
        table = app.screen.query_one(FitTable)
        return table.row, table.column

    yield Row("model.take", "enter", mode, "data")
    yield Row("go.model", "3", mode, "model", "escape")
    yield Row("fit.up", "up", lambda app: cell(app)[0], 0, lambda app: put_cell(app, 1, 1))
    yield Row("fit.down", "down", lambda app: cell(app)[0], 1)
    yield Row("fit.up", "k", lambda app: cell(app)[0], 0)
    yield Row("fit.down", "j", lambda app: cell(app)[0], 1)
    yield Row("fit.left", "left", lambda app: cell(app)[1], 0)
    yield Row("fit.right", "right", lambda app: cell(app)[1], 1)
    yield Row("fit.left", "h", lambda app: cell(app)[1], 0)
    yield Row("fit.right", "l", lambda app: cell(app)[1], 1)
    yield Row("model.copy", "c", heard, "copied")
    yield Row("model.open", "o", top, "PathDialog")
    yield Row("path.up", "backspace", lambda app: str(app.screen.folder), "/", into("/usr"))
    yield Row("path.type", "slash", focus, "Input")
    yield Row("path.back", "escape", top, "ModelScreen")
    yield Row("model.search", "slash", focus, "Input")
    yield Row("model.back", "b", has("-report"), False, "escape")
    yield Row("list.choose", "enter", heard, "demo --fetch-only --json")


def put_cell(app, row, column):
    table = app.screen.query_one(FitTable)
    table.row, table.column = row, column


def into(folder):
    def go(app):
        app.screen.folder = Path(folder)

    return go


def data():
    def sample(app):
        return str(app.screen.query_one("#data-sample").border_title).partition("(")[2][:1]

    yield Row("data.take", "enter", mode, "config")
    yield Row("go.data", "4", mode, "data", "escape")
    yield Row("data.next", "n", sample, "2")
    yield Row("data.previous", "p", sample, "1")
    yield Row("data.copy", "c", heard, "copied")
    yield Row("data.open", "o", top, "PathDialog")
    yield Row("data.type", "slash", focus, "Input", "escape")
    yield Row("data.back", "b", has("-report"), False, "escape")


def config():
    effort = of_screen(lambda screen: screen.wizard.effort)
    yield Row("choice.next", "right", effort, "thorough")
    yield Row("choice.previous", "left", effort, "usual")
    yield Row("choice.next", "space", effort, "thorough")
    yield Row("choice.take", "enter", of_screen(lambda screen: screen._key), "?card", "left")
    yield Row("entry.take", "enter", of_screen(lambda screen: screen._key), "?effort",
              lambda app: app.screen.rows["dataset"].take_keyboard())  # fmt: skip
    for key in ("f6", "v"):
        yield Row("config.preview", key, top, "PreviewDialog", "escape")
        yield Row("preview.close", "escape", top, "ConfigScreen")
    for key in ("q", "enter", "v", "f6"):
        yield Row("preview.close", key, top, "ConfigScreen", "f6")
    yield Row("preview.copy", "y", heard, "copied", "f6")
    for id, key, asked in (
        ("save", "ctrl+s", "Save these settings as"),
        ("save", "w", "Save these settings as"),
        ("load", "ctrl+o", "Open the settings of which file?"),
        ("load", "o", "Open the settings of which file?"),
    ):
        yield Row(f"config.{id}", key, title, asked, "escape")
        yield Row("name.back", "escape", title, "")
    yield from settings()


def settings():
    def text(key):
        return lambda app: app.screen.wizard.form().text(key)

    def entered(key, text):
        def enter(app):
            app.screen.wizard.enter(key, text)
            app.screen._key = key
            app.screen.show_all()

        return enter

    for key in ("f5", "s"):
        yield Row("config.start", key, heard, "start harbour-voice-run.yaml")
    for key in ("ctrl+r", "r"):
        yield Row("config.reset", key, text("output_dir"), "harbour-voice-run",
                  entered("output_dir", "elsewhere"))  # fmt: skip
    for key in ("f7", "x"):
        yield Row("config.mend", key, text("lr_scheduler"), "cosine",
                  entered("lr_scheduler", "cosin"))  # fmt: skip
    is_open = of_screen(lambda screen: all(not one.collapsed for one in screen.query(Collapsible)))
    yield Row("config.all", "f8", is_open, True)
    yield Row("config.all", "a", is_open, False)


def train():
    """A run that goes on."""
    view = lambda name: lambda app: getattr(app.screen.view, name)  # noqa: E731
    yield Row("train.checkpoint", "c", heard, "checkpoint")
    yield Row("train.pause", "p", heard, "pause")
    yield Row("train.stop", "s", title, STOP)
    yield Row("train.abort", "x", title, ABORT, "escape")
    yield Row("train.detach", "d", title, LEAVE, "escape")
    yield Row("train.plot", "z", has("-page-plot"), True, "escape")
    yield Row("train.answers", "m", has("-page-answers"), True)
    yield Row("train.log", "l", has("-page-log"), True)
    yield Row("train.find", "slash", focus, "Input")
    yield Row(
        "train.next-answer", "n",
        lambda app: app.screen.query_one("#answer").border_subtitle, "2 of 2", "escape l",
    )  # fmt: skip
    yield Row("train.quantity", "v", view("quantity"), "gradient norm")
    yield Row("train.log-scale", "y", view("is_log"), True)
    yield Row("train.smoothing", "w", view("smoothing"), "strong")
    yield Row("train.axis", "t", view("axis"), "time")
    yield Row("train.zoom-in", "plus", view("zoom"), 1)
    yield Row("train.zoom-in", "equals_sign", view("zoom"), 2)
    yield Row("train.zoom-out", "minus", view("zoom"), 1)
    yield Row("train.cursor-left", "left", view("cursor"), 0.98)
    yield Row("train.cursor-right", "right", view("cursor"), 1.0)
    yield Row("train.reset", "0", view("cursor"), None)
    yield Row("train.freeze", "space", said, "The display stands still; the training goes on.")


def troubled():
    yield Row("train.put-away", "backspace", lambda app: len(app.screen.panels.alerts_shown), 1)


def failed():
    yield Row("train.apply", "a", heard, "go on in harbour-voice")
    yield Row("train.resume", "r", heard, "go on in harbour-voice")


def done():
    yield Row("train.result", "enter", mode, "result")


def result():
    yield Row("result.next-pane", "enter", has("-talk"), True)
    for key, pane in (("b", "samples"), ("c", "talk"), ("u", "use"), ("o", "overview")):
        name = "chat" if pane == "talk" else pane
        yield Row(f"result.{name}", key, has(f"-{pane}"), True, "escape")
    index = of_screen(lambda screen: screen._index)
    for key, name, then in (
        ("right", "next", 1), ("left", "previous", 0), ("n", "next", 1), ("p", "previous", 0),
    ):  # fmt: skip
        yield Row(f"result.{name}", key, index, then)
    yield Row("result.copy", "y", heard, "copied")
    yield Row("result.export", "e", title, "Write the merged model to which folder?")
    yield Row("result.report", "h", lambda app: heard(app)[:7], "report ", "escape")
    pane = lambda app: app.screen.query_one(ChatPane)  # noqa: E731
    yield Row("chat.compare", "ctrl+t", lambda app: pane(app).is_comparing, True, "c")
    told = lambda app: str(app.screen.query_one("#talk-state").content)  # noqa: E731
    yield Row("chat.anew", "ctrl+n", told, "")
    yield Row("chat.back", "escape", focus, "NoneType")


def runs():
    yield Row("runs.mark", "space", of_screen(lambda screen: screen._marked is not None), True)
    for key in ("escape", "enter", "c", "q"):
        yield Row(
            "runs.compare", "c", top, "CompareDialog", "end home down" if key == "escape" else ""
        )
        yield Row("compare.close", key, top, "RunsScreen")
    yield Row("runs.resume", "g", heard, "go on with harbour-voice-r32")
    yield Row("runs.clone", "k", mode, "config")
    yield Row("runs.copy-path", "y", heard, "copied", "escape 8")
    yield Row("runs.report", "h", title, "Writing the report")
    yield Row("waiting.cancel", "escape", title, "")
    for key in ("delete", "x"):
        yield Row("runs.delete", key, title, "Delete harbour-voice-r32?", "escape")


def busy_model():
    yield Row("model.cancel", "x", of_screen(lambda screen: screen._work is None), True)


def busy_data():
    yield Row("data.cancel", "x", of_screen(lambda screen: screen._count is None), True, "escape")


def with_runs():
    return app_of(runs=StandingRuns(*EACH_STATE))


def two_runs():
    """The second one has its config."""
    folder = Path.cwd() / "harbour-voice-r32"
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("lora_rank: 8\n")
    second = EACH_STATE[1]
    there = replace(second.run, known=replace(second.run.known, path=folder))
    return app_of(runs=StandingRuns(EACH_STATE[0], replace(second, run=there)))


def counted(name):
    return data_scenes.data_app(counted=lambda: data_scenes.recorded(name))


STAGES = {
    "everywhere": Stage("home", tuple(everywhere()), train_scenes.going),
    "home": Stage("home", tuple(home()), with_runs),
    "doctor": Stage("doctor", tuple(doctor(1, 28)), doctor_scenes.doctor_app(doctor_scenes.BROKEN)),
    "model": Stage(
        "model", tuple(model()), model_scenes.model_app(model_scenes.report, model_scenes.NAME)
    ),
    "model that is looked at": Stage(
        "model", tuple(busy_model()), model_scenes.model_app(dict, model_scenes.NAME, goes_on=True)
    ),
    "data": Stage("data", tuple(data()), counted("data-cut")),
    "data that is counted": Stage("data", tuple(busy_data()), data_scenes.data_app()),
    "config": Stage("config", tuple(config()), wizard_app, known),
    "train": Stage("train", tuple(train()), train_scenes.going),
    "train with alerts": Stage("train", tuple(troubled()), train_scenes.troubled),
    "train that failed": Stage("train", tuple(failed()), train_scenes.failed),
    "train that is done": Stage("train", tuple(done()), train_scenes.done),
    "result": Stage("result", tuple(result()), result_app, shown),
    "runs": Stage("runs", tuple(runs()), two_runs),
}


@pytest.mark.parametrize("name", STAGES)
def test_each_key_does_what_it_is_for(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("poros_tui.widgets.waiting.Task", no_answer)
    assert asyncio.run(played(STAGES[name])) == []


IN_OTHER_TESTS = {("data.lengthen", "l"), ("data.skip", "s")}
"""What changes the draft: tests/tui/test_data_screen.py."""


def declared():
    """Binding id and key of every class of the app."""
    for found in pkgutil.walk_packages(poros_tui.__path__, "poros_tui."):
        if found.name.endswith("__main__"):
            continue
        for kind in vars(importlib.import_module(found.name)).values():
            if isinstance(kind, type) and kind.__module__ == found.name:
                for binding in vars(kind).get("BINDINGS", ()):
                    assert isinstance(binding, Binding), kind
                    yield from ((binding.id, key) for key in binding.key.split(","))


def test_no_binding_is_without_a_row_and_no_row_without_its_binding():
    tried = {(row.id, row.key) for stage in STAGES.values() for row in stage.rows}
    assert set(declared()) - tried == IN_OTHER_TESTS
    assert tried - set(declared()) == set()


def questions():
    """The letters of each question's answers, wherever one is written down."""
    for path in sorted(Path(poros_tui.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            calls = [part for part in getattr(node, "elts", ()) if isinstance(part, ast.Call)]
            answers = [call for call in calls if getattr(call.func, "id", "") == "Answer"]
            if answers:
                named = [{k.arg: k.value for k in call.keywords} for call in answers]
                letters = [
                    call.args[3] if len(call.args) > 3 else keywords.get("key")
                    for call, keywords in zip(answers, named, strict=True)
                ]
                yield path.name, [letter.value for letter in letters if letter is not None]


def test_each_answer_of_a_question_has_a_letter_of_its_own():
    """`ConfirmDialog` takes letters by itself: they are no bindings."""
    found = list(questions())
    assert len(found) > 6
    for name, letters in found:
        assert len(set(letters)) == len(letters), (name, letters)
        taken = {key for part in (ConfirmDialog, Choices) for key in bound(part)}
        assert not taken & set(letters), (name, letters)


def bound(kind):
    """Every key of a widget's class and of those that it is made from."""
    bindings = [b for base in kind.__mro__ for b in vars(base).get("BINDINGS", ())]
    return {key for binding in bindings for key in binding.key.split(",")}


def test_each_binding_is_told_in_the_list_of_keys_once():
    told = [action.id for action in (*keys.all_actions(PorosApp.BINDINGS), *keys.shared_actions())]
    assert sorted(told) == sorted({id for id, _ in declared()})


def test_keys_of_lists_and_tables_are_no_other_s_on_the_screens_that_have_them():
    # Where Enter chooses from a list, the screen's own Enter waits until the list is left.
    shared = {"doctor": (EntryList,), "data": (EntryList,), "model": (EntryList, FitTable)}
    for name, parts in shared.items():
        pressed = [k for a in keys.screen_actions(name) for k in a.keys.split(",")]
        for part in parts:
            own = {key for binding in part.BINDINGS for key in binding.key.split(",")}
            assert own & set(pressed) <= {"enter"}, (name, part)
