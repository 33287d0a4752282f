"""What is refused before a weight is read."""

import dataclasses
import json

import pytest
import torch

from poros import arch_registry
from poros.arch_registry import find_architecture
from poros.certified import certified_cells
from poros.config import PorosConfig
from poros.errors import PorosConfigError, PorosModelError
from poros.training.inputs import (
    read_inputs,
    refuse_short_window,
    refuse_too_long,
    warn_unproved,
)
from tests.engine.training.tiny_run import write_chat_model


def own(spec):
    """The record as a user would have to write it, who can't have the table's own."""
    return dataclasses.replace(spec)


@pytest.mark.parametrize(
    ("model_type", "spec_of", "warnings"),
    [
        ("qwen2", find_architecture, {"error": 0, "warn": 0, "off": 0}),
        ("granite", find_architecture, {"error": 0, "warn": 1, "off": 0}),
        ("qwen2", lambda name: own(find_architecture(name)), {"error": 1, "warn": 1, "off": 0}),
    ],
    ids=["certified", "experimental", "user_asserted"],
)
def test_a_family_is_warned_about_as_far_as_it_is_unproved(
    model_type, spec_of, warnings, monkeypatch
):
    proofs = [cell for cell in certified_cells() if cell.model_type == "qwen2"]
    monkeypatch.setattr(arch_registry, "certified_cells", lambda: tuple(proofs))
    for setting, num_warnings in warnings.items():
        seen = []
        warn_unproved(spec_of(model_type), setting, seen.append)
        assert [event.code for event in seen] == ["W-architecture"] * num_warnings


@pytest.mark.parametrize("window", [16, 63])
def test_packing_is_refused_where_it_would_lose_the_sliding_window(window):
    config = PorosConfig(packing=True, max_seq_length=64)
    with pytest.raises(PorosConfigError, match=f"window of {window}"):
        refuse_short_window(config, {"sliding_window": window})


@pytest.mark.parametrize(
    ("packing", "model"),
    [
        (True, {"sliding_window": 64}),
        (True, {"sliding_window": None}),
        (True, {"sliding_window": 16, "use_sliding_window": False}),
        (False, {"sliding_window": 16}),
    ],
)
def test_packing_is_accepted_where_no_window_is_lost(packing, model):
    refuse_short_window(PorosConfig(packing=packing, max_seq_length=64), model)


@pytest.mark.parametrize(
    "model",
    [
        {"model_type": "gemma3_text"},
        {"model_type": "mistral"},
        {"model_type": "qwen2", "use_sliding_window": True},
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
    ],
)
def test_a_window_that_the_file_leaves_to_transformers_is_a_window_too(model):
    config = PorosConfig(packing=True, max_seq_length=4097)
    with pytest.raises(PorosConfigError, match="window of 4096"):
        refuse_short_window(config, model)
    refuse_short_window(PorosConfig(packing=True, max_seq_length=4096), model)


def test_positions_that_the_file_leaves_to_transformers_have_an_end_too():
    with pytest.raises(PorosConfigError, match="2048 positions"):
        refuse_too_long(PorosConfig(max_seq_length=2049), {"model_type": "llama"})
    refuse_too_long(PorosConfig(max_seq_length=2048), {"model_type": "llama"})


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_a_window_that_transformers_has_and_does_not_use_is_none(model_type):
    refuse_short_window(PorosConfig(packing=True, max_seq_length=8192), {"model_type": model_type})


def test_a_config_that_transformers_refuses_is_read_as_it_stands():
    model = {"model_type": "mistral", "hidden_size": "wide", "sliding_window": 16}
    with pytest.raises(PorosConfigError, match="window of 16"):
        refuse_short_window(PorosConfig(packing=True, max_seq_length=64), model)


def test_foreign_quantised_weights_are_refused_before_a_row_is_read(tmp_path):
    model = write_chat_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (model / "config.json").write_text(json.dumps(config))
    settings = PorosConfig(model_name_or_path=str(model), dataset=str(tmp_path / "no.jsonl"))
    with pytest.raises(PorosModelError, match="gptq"):
        read_inputs(settings, torch.device("cpu"), lambda _: None)
