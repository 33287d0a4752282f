"""Which families run, and that nothing a user does makes one certified."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import poros
from poros import arch_registry
from poros.arch_registry import (
    VARIABLE,
    architectures,
    find_architecture,
    label,
    label_of,
    labels,
    register_architecture,
    runnable_arch_types,
    user_asserted_arch_types,
    validated_arch_types,
)
from poros.arch_table import TABLE, ArchSpec
from poros.certified import Cell, Stack, certified_cells, this_stack
from poros.config import PorosConfig
from poros.config_load import load_config
from poros.errors import PorosArchNotValidatedError, PorosConfigError

ROOT = Path(__file__).parents[2]
OWN = {spec.model_type for spec in TABLE}
PROVED = next(cell for cell in certified_cells() if cell.model_type == "qwen2")


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(arch_registry, "_registered", {})


@pytest.mark.parametrize("spec", TABLE, ids=lambda spec: spec.model_type)
def test_every_family_is_found_by_its_model_type(spec: ArchSpec) -> None:
    assert find_architecture(spec.model_type) is spec


def test_no_family_stands_in_the_table_twice() -> None:
    assert len(architectures()) == len(TABLE)


@pytest.mark.parametrize("model_type", ["qwen", "Llama", "gpt2", None, 3])
def test_an_unknown_family_is_refused_with_the_known_ones(model_type: object) -> None:
    with pytest.raises(PorosArchNotValidatedError) as caught:
        find_architecture(model_type)
    assert "llama, qwen2, qwen3, mistral, phi3" in str(caught.value)
    assert f"{VARIABLE}={model_type}" in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "model_type", ["qwen3_moe", "gpt_oss", "glm4_moe", "mixtral", "qwen3_5_moe_text", "olmoe"]
)
def test_a_mixture_of_experts_is_refused_with_the_reason_and_cant_be_registered(model_type):
    with pytest.raises(PorosArchNotValidatedError, match="fuses the experts"):
        find_architecture(model_type)
    with pytest.raises(PorosConfigError, match="fuses the experts"):
        register_architecture(model_type)


def test_a_registered_family_is_found_and_runs_as_user_asserted():
    spec = register_architecture("olmo", layers_path="model.layers", notes="my own look at it")
    assert find_architecture("olmo") is spec
    assert spec.notes == "my own look at it"
    assert label("olmo") == "user_asserted"
    assert user_asserted_arch_types() == {"olmo"}
    assert runnable_arch_types() == OWN | {"olmo"}
    assert set(architectures()) == OWN | {"olmo"}
    assert validated_arch_types() == poros.VALIDATED_BLOCKWISE_ARCH_TYPES
    assert "olmo" not in validated_arch_types()


def test_the_variable_names_families_with_or_without_a_path(monkeypatch):
    monkeypatch.setenv(VARIABLE, "olmo, stablelm=model.layers,,")
    assert user_asserted_arch_types() == {"olmo", "stablelm"}
    assert find_architecture("stablelm").layers_path == "model.layers"
    assert find_architecture("olmo").layers_path == ""
    assert label("stablelm") == "user_asserted"


@pytest.mark.parametrize(
    ("value", "word"),
    [("ol mo", "no model type"), ("mixtral", "experts"), ("llama=x", "can't be replaced")],
)
def test_a_wrong_variable_is_refused_by_its_name(monkeypatch, value, word):
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(PorosConfigError, match=word) as caught:
        runnable_arch_types()
    assert caught.value.where == VARIABLE


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"layer_path": "x"}, "did you mean layers_path"),
        ({"layers_path": 3}, "expected a text"),
        ({"resident": "model.norm"}, "expected a list of texts"),
        ({"resident": ["model.norm", 1]}, "expected a list of texts"),
        ({"recurrent": 1}, "expected True or False"),
        ({"renames": ["a", "b"]}, "expected a list of pairs of texts"),
        ({"renames": [("a", "b", "c")]}, "expected a list of pairs of texts"),
        ({"status": "certified"}, "no field 'status'"),
        ({"label": "certified"}, "no field 'label'"),
    ],
)
def test_a_field_that_is_no_field_is_refused(given, word):
    with pytest.raises(PorosConfigError, match=word):
        register_architecture("olmo", **given)
    assert user_asserted_arch_types() == frozenset()


def test_every_field_can_be_given():
    own = find_architecture("gpt_neox")
    given = {
        f.name: getattr(own, f.name) for f in dataclasses.fields(own) if f.name != "model_type"
    }
    spec = register_architecture("olmo", **given)
    assert spec == dataclasses.replace(own, model_type="olmo")
    assert spec.renames


@pytest.mark.parametrize("model_type", ["", "a/b", None, 3])
def test_what_is_no_model_type_cant_be_registered(model_type):
    with pytest.raises(PorosConfigError, match="no model type"):
        register_architecture(model_type)


def test_a_multimodal_type_needs_no_registering():
    with pytest.raises(PorosConfigError, match="text part"):
        register_architecture("gemma3")


def test_the_lists_are_public_names():
    for name in (
        "architectures",
        "register_architecture",
        "runnable_arch_types",
        "user_asserted_arch_types",
        "validated_arch_types",
    ):
        assert getattr(poros, name) is getattr(arch_registry, name)


# What a user may try to make a family certified: `olmo`, which isn't in the table, or `granite`,
# which is.


def by_registering():
    register_architecture("olmo", notes="certified", hf_class="OlmoForCausalLM")
    register_architecture("granite", notes="certified")


def by_registering_under_a_proved_name():
    with pytest.raises(PorosConfigError, match="can't be replaced"):
        register_architecture(PROVED.model_type, hf_class="OlmoForCausalLM")
    register_architecture("olmo", hf_class=find_architecture(PROVED.model_type).hf_class)


def by_the_variable():
    os.environ[VARIABLE] = "olmo,granite,olmo"


def by_a_yaml_file():
    Path("train.yaml").write_text("dataset: x\nblockwise_arch_check: off\n")
    load_config(Path("train.yaml"))
    for line in ("label: certified", "certified: true", "blockwise_arch_check: certified"):
        Path("train.yaml").write_text(f"dataset: x\n{line}\n")
        with pytest.raises(PorosConfigError):
            load_config(Path("train.yaml"))
    register_architecture("olmo")


def by_no_check():
    PorosConfig(blockwise_arch_check="off")
    register_architecture("olmo")


def by_a_local_parity_pass():
    """A gate that passed here, and a file of proofs here: neither is read."""
    for model in ("olmo", "granite"):
        folder = Path("docs/validation") / model
        folder.mkdir(parents=True)
        source = ROOT / "docs/validation" / PROVED.artifacts[0] / "gate.json"
        record = json.loads(source.read_text())
        record["cells"][0]["model"] = model
        (folder / "gate.json").write_text(json.dumps(record))
    cell = dataclasses.asdict(dataclasses.replace(PROVED, model_type="olmo"))
    Path("certified.json").write_text(json.dumps({"cells": [cell]}))
    register_architecture("olmo")


def by_a_forged_field():
    spec = register_architecture("olmo")
    for name in ("label", "status", "certified"):
        object.__setattr__(spec, name, "certified")
    object.__setattr__(spec, "__class__", type("Forged", (ArchSpec,), {"label": "certified"}))


def by_a_record_that_calls_itself_another():
    proved = find_architecture(PROVED.model_type)
    assert label_of(dataclasses.replace(proved, layers_path="model.other")) == "user_asserted"
    assert label_of(dataclasses.replace(proved)) == "user_asserted"
    assert label_of(copy.deepcopy(proved)) == "user_asserted"
    assert label_of(pickle.loads(pickle.dumps(proved))) == "user_asserted"
    spec = register_architecture("olmo")
    object.__setattr__(spec, "model_type", PROVED.model_type)
    assert label_of(spec) == "user_asserted"
    object.__setattr__(spec, "model_type", "olmo")


def by_changing_what_the_lists_give():
    known = architectures()
    known["olmo"] = find_architecture(PROVED.model_type)
    register_architecture("olmo")
    for types in (validated_arch_types(), runnable_arch_types(), certified_cells()):
        assert not hasattr(types, "add")
        assert not hasattr(types, "append")
    with pytest.raises(dataclasses.FrozenInstanceError):
        certified_cells()[0].model_type = "olmo"  # type: ignore[misc]  # that is the test


WAYS = [value for name, value in list(globals().items()) if name.startswith("by_")]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_no_action_of_a_user_makes_a_family_certified(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = validated_arch_types()
    proofs = certified_cells()
    words_before = {model_type: label(model_type) for model_type in OWN}
    monkeypatch.setenv(VARIABLE, "")
    way()
    certified_cells.cache_clear()
    assert certified_cells() == proofs
    assert validated_arch_types() == before == poros.VALIDATED_BLOCKWISE_ARCH_TYPES
    assert {model_type: label(model_type) for model_type in OWN} == words_before
    assert all(find_architecture(spec.model_type) is spec for spec in TABLE)
    if "olmo" in architectures():
        assert label("olmo") == "user_asserted"
        words = labels("olmo", PROVED.precision, PROVED.stack)
        assert "certified" not in (words.architecture, words.precision, words.stack)


def test_a_proof_of_a_family_outside_the_table_certifies_nothing(monkeypatch):
    forged = (dataclasses.replace(PROVED, model_type="olmo"),)
    monkeypatch.setattr(arch_registry, "certified_cells", lambda: forged)
    register_architecture("olmo")
    assert label("olmo") == "user_asserted"
    assert validated_arch_types() == frozenset()


STACK = PROVED.stack


@pytest.mark.parametrize(
    ("precision", "stack", "words"),
    [
        ("nf4", STACK, ("certified", "certified", "certified")),
        ("fp16", STACK, ("certified", "experimental", "experimental")),
        (
            "nf4",
            dataclasses.replace(STACK, torch="2.12"),
            ("certified", "certified", "experimental"),
        ),
        (
            "nf4",
            dataclasses.replace(STACK, bitsandbytes="0.50.3"),
            ("certified", "certified", "experimental"),
        ),
        (
            "nf4",
            dataclasses.replace(STACK, compute_capability="8.6"),
            ("certified", "certified", "experimental"),
        ),
        (
            "nf4",
            dataclasses.replace(STACK, compute_capability=""),
            ("certified", "certified", "experimental"),
        ),
    ],
)
def test_the_three_words_say_which_part_is_proved(precision, stack, words, monkeypatch):
    monkeypatch.setattr(arch_registry, "certified_cells", lambda: (PROVED,))
    found = labels(PROVED.model_type, precision, stack)
    assert (found.architecture, found.precision, found.stack) == words
    assert set(found.artifacts) >= set(PROVED.artifacts)


def test_a_family_of_the_table_without_an_artifact_is_experimental_in_all_words(monkeypatch):
    monkeypatch.setattr(arch_registry, "certified_cells", lambda: (PROVED,))
    assert PROVED.model_type != "granite"
    found = labels("granite", "nf4", STACK)
    assert (found.architecture, found.precision, found.stack) == ("experimental",) * 3
    assert found.artifacts == ()


def test_this_stack_is_read_without_torch():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'engine')!r})\n"
        "from poros.certified import this_stack\nprint(this_stack())\n"
        "assert not {'torch', 'transformers', 'bitsandbytes'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(this_stack())
    assert all(isinstance(cell, Cell) for cell in certified_cells())
    assert isinstance(this_stack(), Stack)


def test_a_forgotten_comma_is_told_by_the_field() -> None:
    with pytest.raises(TypeError, match="lora_targets is a text"):
        ArchSpec(model_type="x", hf_class="X", lora_targets="q_proj")  # type: ignore[arg-type]
