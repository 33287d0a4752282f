"""The draft that screens share: names, places, lengths, what is known."""

from pathlib import Path

import pytest

from poros.config import PorosConfig
from poros.demo_settings import train_path
from poros_tui.engine.machine import Machine
from poros_tui.screens import config_told
from poros_tui.screens.config_draft import SETTLED_S, Draft, Lengths
from poros_tui.screens.config_facts import DataFacts, ModelFacts, look_at_data
from poros_tui.state import AppState
from tests.tui.pilot import StandingLookup


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def draft() -> Draft:
    made = Draft()
    made.lookups.models = StandingLookup(ModelFacts())
    made.lookups.data = StandingLookup(DataFacts())
    made.lookups.rates = StandingLookup(None)
    return made


def problem_of(draft: Draft, key: str) -> str:
    found = draft.wizard.check().problem_of(key)
    return found.message if found else ""


def mended(draft: Draft, key: str) -> str:
    found = draft.wizard.check().problem_of(key)
    assert found is not None
    draft.wizard.enter(key, found.change[key])
    assert problem_of(draft, key) == ""
    return draft.wizard.output_dir


def test_the_runs_folder_follows_the_data_unless_it_was_typed(draft: Draft) -> None:
    values = {"output_dir": "runs/poros_demo", "dataset": str(train_path())}
    state = AppState(model="m", data=str(train_path()), values=values)
    assert draft.take_over(state)
    assert draft.wizard.output_dir == "runs/poros_demo"
    state.update(data="harbour.jsonl")
    assert draft.take_over(state)
    assert draft.wizard.output_dir == "runs/harbour-run"
    assert not draft.take_over(state)
    draft.wizard.enter("output_dir", "mine")
    state.update(data="other.jsonl")
    draft.take_over(state)
    assert draft.wizard.output_dir == "mine"
    draft.wizard.reset("output_dir")
    assert draft.wizard.output_dir == "other-run"


def test_a_folder_in_which_a_run_ended_is_left_for_a_new_one(draft: Draft, here: Path) -> None:
    state = AppState(model="m", data="d.jsonl", values={"output_dir": "d-run"})
    draft.take_over(state)
    (here / "d-run").mkdir()
    (here / "d-run" / "run.json").write_text("{}")
    draft.take_over(state)
    assert draft.wizard.output_dir == "d-run"  # it may go on
    (here / "d-run" / "adapter").mkdir()
    draft.take_over(state)
    assert draft.wizard.output_dir == "d-run-2"


def test_another_model_does_not_go_on_in_a_folder_that_has_a_run(draft: Draft, here: Path) -> None:
    state = AppState(model="m", data="d.jsonl", values={"output_dir": "d-run"})
    draft.take_over(state)
    state.update(model="n")
    draft.take_over(state)
    assert draft.wizard.output_dir == "d-run"
    (here / "d-run").mkdir()
    (here / "d-run" / "run.json").write_text("{}")
    state.update(model="o")
    draft.take_over(state)
    assert draft.wizard.output_dir == "d-run-2"


def test_where_no_run_can_be_is_told_and_mended_by_a_key(draft: Draft, here: Path) -> None:
    draft.take_over(AppState(model="m", data="d.jsonl"))
    (here / "rows.jsonl").write_text("")
    draft.wizard.enter("output_dir", "rows.jsonl")
    assert "belongs to a file" in problem_of(draft, "output_dir")
    assert mended(draft, "output_dir") == "rows.jsonl-2"
    draft.wizard.enter("output_dir", "nope/deep")
    assert "parent is missing" in problem_of(draft, "output_dir")
    assert "mkdir -p nope" in draft.wizard.check().problems[0].way_out
    assert mended(draft, "output_dir") == "deep"
    (here / "photos").mkdir()
    (here / "photos" / "a.jpg").write_text("")
    draft.wizard.enter("output_dir", "photos")
    assert "a.jpg" in problem_of(draft, "output_dir")
    assert mended(draft, "output_dir") == "photos-2"


def test_what_was_typed_here_stays_though_it_is_not_whole_yet(draft: Draft) -> None:
    state = AppState(data="d.jsonl")  # no model: nothing is left for the others
    draft.take_over(state)
    draft.wizard.enter("dataset", "typed.jsonl")
    assert not draft.take_over(state)
    assert draft.wizard.dataset == "typed.jsonl"
    state.update(data="chosen.jsonl")
    assert draft.take_over(state)
    assert draft.wizard.dataset == "chosen.jsonl"


def test_a_typed_name_is_looked_up_once_it_stands(draft: Draft) -> None:
    draft.take_over(AppState(model="m", data="d.jsonl"))
    assert draft.unchecked == "model"
    draft.look_up(Machine())
    assert draft.unchecked == ""
    draft.wizard.enter("model_name_or_path", "ty")
    draft.look_up(Machine(), typed="model_name_or_path", now_s=10.0)
    draft.wizard.enter("model_name_or_path", "typed")
    draft.look_up(Machine(), typed="model_name_or_path", now_s=10.0 + 0.9 * SETTLED_S)
    draft.look_up(Machine(), typed="model_name_or_path", now_s=10.0 + 1.8 * SETTLED_S)
    assert draft.unchecked == "model"
    draft.look_up(Machine(), typed="model_name_or_path", now_s=10.0 + 2.0 * SETTLED_S)
    assert draft.unchecked == ""
    assert "ty" not in draft.lookups.models.answers


def test_what_was_wrong_is_looked_at_again(draft: Draft) -> None:
    draft.lookups.models.put("m", ModelFacts(told="no network", is_wrong=True))
    draft.take_over(AppState(model="m", data="d.jsonl"))
    draft.look_up(Machine())
    assert (draft.wrong_key, draft.why_not) == ("model_name_or_path", "the model: no network")
    draft.check_again()
    draft.look_up(Machine())
    assert (draft.wrong_key, draft.why_not) == ("", "")


def test_lines_that_can_not_be_read_are_told_and_left_out_by_a_key(
    draft: Draft, here: Path
) -> None:
    (here / "d.jsonl").write_text('{"text": "T"}\n{oops\n{"text": "U"}\n')
    draft.lookups.data = StandingLookup(look_at_data("d.jsonl"))
    draft.take_over(AppState(model="m", data="d.jsonl"))
    draft.look_up(Machine())
    told = problem_of(draft, "on_bad_line")
    assert told.startswith("1 line of the data can't be read, d.jsonl:2:2: ")
    mended(draft, "on_bad_line")
    assert draft.wizard.check().problems == ()


def test_samples_that_are_longer_are_counted_for_any_length(draft: Draft) -> None:
    draft.take_over(AppState(model="m", data="d.jsonl"))
    assert config_told.uncounted(draft.known_lengths, "d.jsonl") == "4 Data counts what is cut"
    assert config_told.uncounted(draft.known_lengths, "") == ""
    draft.lengths = found = Lengths("d.jsonl", "m", 64, [5, 64, 64], [80, 159])
    assert [found.num_over(n) for n in (4, 5, 63, 64, 79, 80, 159)] == [5, 4, 4, 2, 2, 1, 0]
    assert draft.known_lengths is found
    assert config_told.uncounted(found, "d.jsonl") == ""
    draft.wizard.enter("model_name_or_path", "another")
    assert draft.known_lengths is None


def test_other_data_are_asked_with_the_settings_that_they_would_get(draft: Draft) -> None:
    state = AppState(model="m", data=str(train_path()))
    draft.take_over(state)
    assert draft.values()["max_seq_length"] == 128  # the demo's own
    draft.look_up(Machine())
    assert draft.values("harbour.jsonl").get("max_seq_length") == 512  # for the CPU
    assert draft.wizard.dataset == str(train_path())
    draft.wizard.enter("max_seq_length", "300")
    assert draft.values()["max_seq_length"] == 300


def test_a_run_that_was_begins_another_with_changes_on_top(draft: Draft, here: Path) -> None:
    folder = here / "a-run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "config.yaml").write_text(
        "model_name_or_path: m\ndataset: d.jsonl\noutput_dir: a-run\nlora_rank: 64\n"
    )
    state = AppState(model="other", data="other.jsonl")
    draft.take_over(state)
    before = draft.version
    assert draft.begin_from(folder, "as a-run was", ["learning_rate=1e-5"]) == []
    assert draft.version > before
    checked = draft.wizard.check()
    assert checked.config == PorosConfig(
        model_name_or_path="m", dataset="d.jsonl", output_dir=f"{folder}-2", lora_rank=64,
        learning_rate=1e-5,
    )  # fmt: skip
    assert set(draft.wizard.own) == {"learning_rate"}
    assert not draft.take_over(state)
