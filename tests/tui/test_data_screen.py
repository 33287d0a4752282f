"""The Data screen: rows as they stand, then what is trained of them; what is lost; the take."""

import pytest
from textual.widgets import Input

from poros.demo_settings import train_path
from poros.rows import refuse_missing
from poros_tui.engine.tasks import Task
from poros_tui.screens.config_facts import ModelFacts, look_at_data
from poros_tui.screens.config_rows import Row
from poros_tui.screens.data_facts import facts, first_trained, sample_text, verdict
from poros_tui.screens.verdict import VerdictLine
from poros_tui.state import AppState
from poros_tui.widgets.entry_list import EntryList
from poros_tui.widgets.facts import Fact
from poros_tui.widgets.histogram import binned, heights
from tests.tui.config_fixtures import MODEL, headers
from tests.tui.pilot import app_of, at, piloted
from tests.tui.recorded import RecordedTask, answers, no_answer
from tests.tui.scenes import data as scenes


def text(app, of):
    return str(app.screen.query_one(of).render())


def test_rows_are_shown_at_once_and_tokens_when_they_are_counted():
    count = RecordedTask(["data"], goes_on=True)
    asked = []

    def answer(words):
        return count if "-m" in words else RecordedTask(words, [scenes.raw()])

    def make():
        state = AppState(model=scenes.MODEL, values={"max_seq_length": 128})
        return app_of(state, make_task=answers({"data": answer}, asked))

    @piloted(mode="data", make=make)
    async def run(app, pilot):
        await pilot.press("enter")
        await at(app, pilot, "data")
        assert asked[0][1] == asked[1][1] == str(train_path())
        assert "--max-seq-length=128" in asked[1]
        assert "Counting tokens" in text(app, "#data-verdict .said")
        assert "Why is the sky blue?" in text(app, "#data-text")
        record = scenes.recorded("data-voice")
        count.result = RecordedTask([], [record]).result
        await at(app, pilot, "data")
        assert "The demo's rows: 174 samples to learn from" in text(app, "#data-verdict .said")
        assert "Your own: o opens a file" in text(app, "#data-verdict .way-out")
        assert "«Aye, air scatters" in text(app, "#data-text")
        await pilot.press("n")
        assert "(2 of 3)" in app.screen.query_one("#data-sample").border_title
        await pilot.press("p", "p")
        assert "(3 of 3)" in app.screen.query_one("#data-sample").border_title
        await pilot.press("enter")
        assert (app.state.data, app.current_mode) == (str(train_path()), "config")
        assert "data" in app.state.done
        app.state.update(model="another/model")
        await at(app, pilot, "data")
        assert asked[-1][asked[-1].index("-m") + 1] == "another/model"

    run()


def test_a_child_that_counts_ends_with_the_app():
    counts = []  # what is known of the model may come late, and then it counts anew

    def answer(words):
        if "-m" not in words:
            return RecordedTask(words, [scenes.raw()])
        counts.append(RecordedTask(words, goes_on=True))
        return counts[-1]

    def make():
        return app_of(AppState(model="m", data="d.jsonl"), make_task=answers({"data": answer}))

    @piloted(mode="data", make=make)
    async def run(app, pilot):
        assert counts[-1].result is None

    run()
    assert {count.result.state for count in counts} == {"cancelled"}


@piloted(mode="data", make=scenes.data_app(counted=lambda: scenes.NOT_INSTALLED, exit_code=2))
async def test_without_torch_rows_are_there_with_the_line_that_installs_it(app, pilot):
    await at(app, pilot, "data")
    assert "Rows as they stand; torch is not installed" in text(app, "#data-verdict .said")
    await pilot.press("c")
    assert app.clipboard == 'pip install "poros-tui[train]"'
    await pilot.press("enter")
    assert app.current_mode == "config"


@piloted(mode="data", make=scenes.data_app(scenes.odd, model=""))
async def test_rows_of_no_shape_are_shown_and_not_taken(app, pilot):
    await at(app, pilot, "data")
    assert "Poros knows no rows with the keys question, answer" in text(app, "#data-verdict .said")
    assert "rename question to prompt" in text(app, "#data-verdict .way-out")
    assert "A keeper." in text(app, "#data-text")
    await pilot.press("enter")
    assert app.current_mode == "data"
    await pilot.press("b")
    entries = app.screen.query_one(EntryList)
    assert entries.entry.key == str(train_path())


def test_a_file_that_is_wrong_is_told_and_the_real_command_reads_one_that_is_right(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Who?", "completion": "A keeper."}\n{broken\n')

    async def until(app, pilot, found):
        for _ in range(400):
            await pilot.pause(0.05)
            await app.tick()
            if found(app.screen.record):
                return

    @piloted(mode="data", make=lambda: app_of(AppState(), make_task=Task))
    async def run(app, pilot):
        await pilot.press("slash")
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await until(app, pilot, lambda record: record is not None)
        assert "Line 2, column 2: " in text(app, "#data-verdict .said")
        assert "press s" in text(app, "#data-verdict .way-out")
        assert app.screen.query_one("#data-choose").display
        await pilot.press("s")
        await until(app, pilot, lambda record: record and record.get("raw"))
        await app.tick()
        assert "1 rows, read as prompt_completion" in text(app, "#data-verdict .said")
        assert "Choose a model" in text(app, "#data-verdict .way-out")
        # As words: it may not be laid out anew yet.
        assert "1 lines, left out" in " ".join(text(app, "#data-facts").split())
        assert app.draft.values()["on_bad_line"] == "skip"

    run()


def test_a_file_that_is_missing_is_told_at_once_without_a_child(tmp_path):
    asked = []

    def make():
        app = app_of(AppState(model="m"), make_task=answers({}, asked))
        app.draft.lookups.refuse_missing = refuse_missing
        return app

    @piloted(mode="data", make=make)
    async def run(app, pilot):
        for name, told in (
            ("none.jsonl", "No such data file"),
            (str(tmp_path), "A folder stands where a data file must"),
        ):
            app.screen.ask(name)
            assert told in text(app, "#data-verdict .said")
            await app.tick()
            assert told in text(app, "#data-verdict .said")
        assert asked == []
        app.screen.ask("owner/name")
        assert asked == [("data", "owner/name", "--json")]

    run()


def test_a_wrong_row_is_told_without_waiting_for_the_count():
    error = {"code": "E-data", "message": "no rows", "where": "d.jsonl", "remediation": "write one"}
    count = RecordedTask(["data"], goes_on=True)

    def answer(words):
        if "-m" in words:
            return count
        return RecordedTask(words, [{"error": error}], exit_code=3)

    def make():
        return app_of(
            AppState(model=scenes.MODEL, data="d.jsonl"), make_task=answers({"data": answer})
        )

    @piloted(mode="data", make=make)
    async def run(app, pilot):
        await at(app, pilot, "data")
        for _ in range(3):
            await app.tick()
        assert "No rows" in text(app, "#data-verdict .said")
        assert count.result.state == "cancelled"

    run()


@piloted(mode="data", make=lambda: app_of(AppState()))
async def test_an_answer_leaves_the_keyboard_in_the_field_that_was_just_emptied(app, pilot):
    app.screen.ask("earlier.jsonl")
    await pilot.press("slash", "ctrl+u")
    app.screen._show_rows(scenes.raw())
    await pilot.pause()
    await pilot.press(*"of")  # the list's `o` would open a dialog
    assert app.screen.query_one(Input).value == "of"


@piloted(mode="data", make=lambda: app_of(AppState()))
async def test_what_is_typed_while_an_enter_waits_is_kept(app, pilot):
    """On a slow machine the next name may be half typed before the first one is looked at."""
    await pilot.press("slash", *"ab")
    field = app.screen.query_one(Input)
    app.screen.on_input_submitted(Input.Submitted(field, "earlier.jsonl"))
    assert (app.screen.asked, field.value, app.focused) == ("earlier.jsonl", "ab", field)
    app.screen._show_rows(scenes.raw())
    assert app.focused is field
    await pilot.press("enter")
    assert app.screen.asked == "ab"
    assert app.focused is app.screen.query_one(EntryList)  # from here on keys are commands
    await pilot.press("slash")
    app.screen._opened("chosen.jsonl")  # by the dialog, which another key had opened
    app.screen._show_rows(scenes.raw())
    await pilot.pause()
    assert (field.value, app.focused) == ("chosen.jsonl", app.screen.query_one("#data-scroll"))


def test_the_length_is_configs_and_a_key_makes_it_cut_none():
    asked = []

    def answer(words):
        return RecordedTask(words, [scenes.recorded("data-cut") if "-m" in words else scenes.raw()])

    def make():
        state = AppState(model=scenes.MODEL, data=scenes.FILE, values={"max_seq_length": 64})
        return app_of(state, make_task=answers({"data": answer}, asked))

    @piloted(mode="data", make=make)
    async def run(app, pilot):
        await at(app, pilot, "data")
        assert "--max-seq-length=64" in asked[-1]
        await at(app, pilot, "config")
        screen = app.screen
        told = str(screen.query_one("#cost").render())
        assert "cut 5 of 8 samples" in " ".join(told.split())
        assert screen.checked.config.max_seq_length == 64
        screen.on_row_entered(Row.Entered("max_seq_length", "90"))
        assert "cut 3 of 8 samples" in " ".join(str(screen.query_one("#cost").render()).split())
        await at(app, pilot, "data")
        assert "--max-seq-length=90" in asked[-1]
        await pilot.press("l")
        await app.tick()
        assert "--max-seq-length=159" in asked[-1]
        await at(app, pilot, "config")
        assert screen.checked.config.max_seq_length == 159
        assert "cut 5" not in str(screen.query_one("#cost").render())

    run()


def test_the_length_waits_for_what_the_model_needs():
    """Else tokens would be counted twice: for the default, and for what fits the card."""
    asked = []

    def make():
        app = app_of(
            AppState(model=MODEL, data=scenes.FILE), make_task=answers({"data": no_answer}, asked)
        )
        app.draft.lookups.models.ask = app.draft.lookups.models.answers.get
        return app

    @piloted(mode="data", make=make)
    async def run(app, pilot):
        await app.tick()
        assert [words for words in asked if "-m" in words] == []
        app.draft.lookups.models.put(MODEL, ModelFacts(headers()))
        await app.tick()
        (counted,) = [words for words in asked if "-m" in words]
        await at(app, pilot, "config")
        length = app.screen.checked.config.max_seq_length
        assert f"--max-seq-length={length}" in counted or length == 2048

    run()


def changed(**changes):
    return scenes.recorded("data-voice") | changes


@pytest.mark.parametrize(
    ("record", "state", "words"),
    [
        (changed(), "ok", "174 samples"),
        (changed(dropped={"empty": 80}, dropped_lines={"empty": [7]}), "bad", "80 of 174"),
        (changed(dropped={"empty": 3}, dropped_lines={"empty": [7]}), "warn", "3 of 174"),
        (changed(dropped={"empty": 1}, dropped_lines={"empty": [7]}), "ok", "174 samples"),
        (changed(num_truncated=100), "warn", "100 of 174"),
        ({"error": {"message": "no such file", "remediation": "mend"}}, "bad", "No such file"),
        (
            {"error": {"message": "bad", "where": "/a:b/c.csv:7", "remediation": ""}},
            "bad",
            "Line 7: B",
        ),
    ],
)
def test_what_is_lost_decides_the_verdict(record, state, words):
    found = verdict(record)
    assert (found.state, words in found.text) == (state, True)


def test_losses_are_told_with_their_rows():
    told = {fact.label: fact for fact in facts(scenes.recorded("data-cut"))}
    assert told["dropped"] == Fact("dropped", "1 empty: row 3", "warn")
    assert told["cut"] == Fact("cut", "5, the longest has 159", "warn")
    assert told["twice"].text == "1: row 2 (as 1)"
    assert told["trained"].text == "170 (38 %)"


def test_a_sample_marks_what_is_trained_and_drives_no_terminal():
    pieces = [["user\nhi\x1b[2J\n", False], ["well", True], ["\n", False]]
    sample = {"pieces": pieces, "line": 1}
    assert sample_text(sample).plain == "user\nhi [2J\n«well»\n"
    assert first_trained(sample) == 2
    long = {"pieces": [["x" * 7000, False], ["y", True]]}
    assert "and 1,001 more characters" in sample_text(long).plain


def test_every_length_is_in_one_column_of_the_histogram():
    counts = binned({10: 2, 11: 1, 500: 1, 1009: 1}, 50)
    assert (sum(counts), len(counts)) == (5, 50)
    assert (counts[0], counts[24], counts[-1]) == (3, 1, 1)
    assert binned({5: 2}, 8) == [2] * 8
    assert heights([0, 1, 1000], 5) == [0, 1, 40]


@piloted(mode="data", make=scenes.data_app(counted=lambda: scenes.recorded("data-voice")))
async def test_rows_of_ones_own_are_not_told_as_the_demos(app, pilot):
    assert "demo" not in text(app, "#data-verdict .said")
    assert app.screen.query_one(VerdictLine).way_out == ""


def test_config_tells_the_demos_rows_as_such(tmp_path):
    own = tmp_path / "voice.jsonl"
    own.write_text(train_path().read_text("utf-8"), "utf-8")
    assert look_at_data(str(train_path())).told == "the demo's 174 rows"
    assert look_at_data(str(own)).told == "174 rows"
