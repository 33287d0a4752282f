"""One's own data bring two prompts, which the model answers before and after the training."""

import json
from pathlib import Path
from typing import Any

import pytest

from poros_tui.engine.machine import Machine
from poros_tui.screens.config_draft import Draft
from poros_tui.screens.config_facts import ModelFacts, look_at_data
from poros_tui.screens.config_presets import QUICK
from poros_tui.state import AppState
from tests.tui.pilot import StandingLookup

ASKED = [{"prompt": f"What is {k}?", "completion": "A number."} for k in (1, 1, 2, 3)]
OTHER = [{"prompt": "Who?", "completion": "A keeper."}]


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path.name


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draft:
    monkeypatch.chdir(tmp_path)
    made = Draft()
    made.lookups.models = StandingLookup(ModelFacts())
    made.lookups.rates = StandingLookup(None)
    monkeypatch.setattr(made.lookups.data, "ask", look_at_data)
    return made


def samples_of(draft: Draft, state: AppState) -> tuple[str, ...]:
    draft.take_over(state)
    draft.look_up(Machine())
    config = draft.wizard.check().config
    assert config is not None
    return config.samples


@pytest.mark.parametrize(
    ("rows", "prompts"),
    [
        (ASKED, ("What is 1?", "What is 2?")),
        (
            [{"messages": [{"role": role, "content": role} for role in ("user", "assistant")]}],
            ("user",),
        ),
        # A sample is asked without a system turn, on one line that `|` would part.
        ([{"messages": [{"role": role, "content": role} for role in ("system", "user")]}], ()),
        ([{"prompt": p, "completion": "b"} for p in ("a | b", "a\nb", "a" * 201, " ")], ()),
        ([{"text": "T"}], ()),
        ([{"ask": "a"}], ()),
    ],
)
def test_the_first_prompts_that_can_be_asked_are_found(
    rows: list[Any], prompts: tuple[str, ...], tmp_path: Path
) -> None:
    write(tmp_path / "rows.jsonl", rows)
    assert look_at_data(str(tmp_path / "rows.jsonl")).prompts == prompts


def test_they_are_the_samples_until_others_are_typed_or_none(draft: Draft, tmp_path: Path) -> None:
    state = AppState(model="m", data=write(tmp_path / "rows.jsonl", ASKED))
    assert samples_of(draft, state) == ("What is 1?", "What is 2?")
    draft.wizard.enter("samples", "Mine?")
    assert samples_of(draft, state) == ("Mine?",)
    draft.wizard.enter("samples", "")
    assert samples_of(draft, state) == ()
    draft.wizard.reset("samples")
    assert samples_of(draft, state) == ("What is 1?", "What is 2?")
    state.update(data=write(tmp_path / "other.jsonl", OTHER))
    assert samples_of(draft, state) == ("Who?",)


def test_those_that_were_given_stay_and_those_of_other_data_do_not(
    draft: Draft, tmp_path: Path
) -> None:
    data, other = (write(tmp_path / f"{k}.jsonl", rows) for k, rows in enumerate((ASKED, OTHER)))
    for given, after in ((["Mine?"], ("Mine?",)), (["What is 1?", "What is 2?"], ())):
        state = AppState(model="m", data=data, values={"dataset": data, "samples": given})
        assert samples_of(draft, state) == tuple(given)
        draft.wizard.effort = QUICK
        assert samples_of(draft, state) == tuple(given)
        draft.give(state.values, "as it was given")
        draft.look_up(Machine())
        state.update(data=other)
        assert samples_of(draft, state) == after


@pytest.mark.parametrize("given", [None, 3, {"a": 1}, "Mine?"])
def test_whatever_a_file_says_of_samples_other_data_can_be_chosen(
    given: Any, draft: Draft, tmp_path: Path
) -> None:
    data, other = (write(tmp_path / f"{k}.jsonl", rows) for k, rows in enumerate((ASKED, OTHER)))
    draft.give({"model_name_or_path": "m", "dataset": data, "samples": given}, "from a file")
    draft.look_up(Machine())
    assert draft.wizard.known.prompts
    draft.take_over(AppState(data=other))
    assert draft.wizard.dataset == other
