"""The wizard's form: made from the config's own fields, all problems at once, each with its fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poros.config import PorosConfig, field_schemas
from poros_tui.screens import config_form
from poros_tui.screens.config_form import Form, fields, groups, shown


def entered(**texts: str) -> Form:
    form = Form({"dataset": "d.jsonl"})
    for key, text in texts.items():
        form.enter(key, text)
    return form


def test_every_setting_of_the_engine_is_in_the_form_with_its_sentence() -> None:
    assert list(fields()) == list(PorosConfig.model_fields)
    assert [each.key for group in groups().values() for each in group] == list(fields())
    for key, each in fields().items():
        assert each.description == " ".join(field_schemas()[key]["description"].split())
        assert each.takes


def test_a_new_setting_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    new = {"type": "integer", "minimum": 3, "group": "magic", "description": "New.", "default": 4}
    schemas = field_schemas() | {"wand_length": new}
    monkeypatch.setattr(config_form, "field_schemas", lambda: schemas)
    monkeypatch.setattr(PorosConfig, "wand_length", 4, raising=False)
    fields.cache_clear()
    try:
        each = groups()["magic"][0]
    finally:
        monkeypatch.undo()
        fields.cache_clear()
    assert (each.title, each.takes, each.kind) == ("Wand length", "a whole number >= 3", "text")


def test_kinds_of_entries() -> None:
    assert fields()["packing"].kind == "toggle"
    assert fields()["quantization"].choices == ("nf4", "bf16", "fp16", "bf16_bitwise")
    assert fields()["vram_budget"].kind == "text"  # a number is possible too
    assert fields()["max_steps"].can_be_empty
    assert not fields()["lora_rank"].can_be_empty


def test_defaults_make_the_default_config_but_for_the_data() -> None:
    assert Form().check(to_train=False).config == PorosConfig()
    problem = Form().check().problem_of("dataset")
    assert problem is not None
    assert "missing" in problem.message


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("learning_rate", "2e-4", 2e-4),
        ("vram_budget", "6", 6.0),
        ("vram_budget", "12 GB", 12.0),
        ("vram_budget", "min", "min"),
        ("max_steps", "", None),
        ("lora_target_modules", "q_proj|v_proj", ("q_proj", "v_proj")),
        ("lora_target_modules", r".*\.q_proj", r".*\.q_proj"),
        ("lora_target_modules", '["q_proj", "v_proj"]', ("q_proj", "v_proj")),
        ("samples", "What is fog? | Why?", ("What is fog?", "Why?")),
        ("packing", "true", True),
        ("output_dir", "12", "12"),
    ],
)
def test_what_is_typed_is_what_the_config_gets(key: str, text: str, value: Any) -> None:
    config = entered(**{key: text}).check().config
    assert config is not None
    assert getattr(config, key) == value


def test_all_problems_at_once_and_their_changes_mend_them() -> None:
    form = entered(lora_rank="0", lr_scheduler="cosin", eval_steps="5", packing="yes")
    checked = form.check()
    assert {key for problem in checked.problems for key in problem.keys} >= {
        "lora_rank", "lr_scheduler", "packing",
    }  # fmt: skip
    for _ in range(3):  # contradictions are seen once the values are sound
        for problem in form.check().problems:
            for key, text in problem.change.items():
                form.enter(key, text)
    config = form.check().config
    assert config is not None
    assert (config.lora_rank, config.lr_scheduler) == (1, "cosine")


def test_an_entry_that_is_no_value_at_all_is_one_problem() -> None:
    checked = entered(samples="[unclosed").check()
    assert [problem.keys for problem in checked.problems] == [("samples",)]


@pytest.mark.parametrize("key", ["samples", "lora_target_modules", "learning_rate"])
def test_a_list_of_a_file_that_is_not_all_text_is_shown_and_told(key: str) -> None:
    form = Form({"dataset": "d.jsonl", key: ["a", 3]})
    assert form.text(key) == '["a", 3]'
    (problem,) = form.check().problems
    assert problem.keys == (key,)


def test_an_entry_equal_to_the_default_is_no_change() -> None:
    form = entered(lora_rank="32")
    assert form.texts["lora_rank"] == "32"
    form.enter("lora_rank", "16")
    assert "lora_rank" not in form.texts


@given(st.sampled_from(sorted(PorosConfig.model_fields)), st.text(max_size=12))
def test_nothing_that_is_typed_breaks_the_form(key: str, text: str) -> None:
    form = Form({"dataset": "d.jsonl"})
    form.enter(key, text)
    checked = form.check()
    assert (checked.config is None) == bool(checked.problems)


def test_every_default_survives_the_way_through_its_entry() -> None:
    for key, each in fields().items():
        form = Form({"dataset": "d.jsonl"})
        form.texts[key] = shown(each.default)
        checked = form.check(to_train=False)
        assert checked.config is not None, (key, checked.problems)
        assert getattr(checked.config, key) == each.default
