from __future__ import annotations

import math
import re

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_registry import find_architecture
from poros.errors import PorosConfigError, PorosModelError
from poros.loading.record_check import check_transformers
from poros.loading.seeded_source import SeededSource
from poros.measure import prepare, shape_cells
from poros.measure.request import Request
from poros.measure.shapes import SHAPES, shape_config
from poros.measure.streamed_arm import run_cell
from tests.engine.measure.small_shapes import NUM_LAYERS, small_shape

MIXED = [name for name, config in SHAPES.items() if "layer_types" in config]

NUM_PARAMETERS = {
    "qwen2.5-0.5b": 0.494, "qwen2.5-7b": 7.616, "qwen2.5-14b": 14.770, "qwen2.5-32b": 32.764,
    "qwen2.5-72b": 72.706, "qwen3-8b": 8.191, "qwen3-32b": 32.762, "llama-3.1-8b": 8.030,
    "llama-3.1-70b": 70.554, "mistral-7b": 7.248, "phi-4": 14.660, "qwen3.5-27b": 26.896,
    "gemma-3-27b": 27.009, "gemma-4-31b": 30.697, "gemma-4-e4b": 7.463,
}  # fmt: skip
"""Billions, of the text part, tied weights once."""


def skip_if_too_old(name: str) -> None:
    """The oldest transformers that Poros takes does not compute every family."""
    try:
        check_transformers(find_architecture(SHAPES[name]["model_type"]))
    except PorosModelError as error:
        pytest.skip(str(error))


def test_the_families_that_people_train_have_a_shape():
    assert {config["model_type"] for config in SHAPES.values()} == {
        "qwen2", "qwen3", "qwen3_5_text", "llama", "mistral", "phi3", "gemma3_text", "gemma4_text",
    }  # fmt: skip


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_headers_are_those_of_stocks_own_model_at_full_depth(name):
    skip_if_too_old(name)
    config = shape_config(name)
    source = SeededSource(config, seed=0)
    with torch.device("meta"):
        stock = AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[config["model_type"]].from_dict(config)
        )
    tied = stock.all_tied_weights_keys
    assert {n: source.header(n).shape for n in source.names()} == {
        n: tuple(t.shape) for n, t in stock.state_dict().items() if n not in tied
    }
    total = sum(math.prod(source.header(n).shape) for n in source.names())
    assert round(total / 1e9, 3) == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", MIXED)
def test_eight_layers_have_all_kinds_and_end_as_the_whole_model_does(name):
    whole, cut = shape_config(name), shape_config(name, num_layers=NUM_LAYERS)
    assert len(cut["layer_types"]) == cut["num_hidden_layers"] == NUM_LAYERS
    assert set(cut["layer_types"]) == set(whole["layer_types"])
    assert cut["layer_types"][-1] == whole["layer_types"][-1]
    assert len(whole["layer_types"]) == whole["num_hidden_layers"]


@pytest.mark.parametrize("num_layers", [3, 7, 8, 12, 42])
def test_layers_that_share_keys_and_values_have_some_to_take_them_from(num_layers):
    cut = shape_config("gemma-4-e4b", num_layers=num_layers)
    shared, kinds = cut["num_kv_shared_layers"], cut["layer_types"]
    assert set(kinds[: num_layers - shared]) == set(kinds)
    assert shared == {3: 0, 7: 3, 8: 3, 12: 5, 42: 18}[num_layers]


def test_a_cut_leaves_the_shape_itself_as_it_was():
    shape_config("gemma-4-e4b", num_layers=8)
    assert len(shape_config("gemma-4-e4b")["layer_types"]) == 42
    assert shape_config("gemma-4-e4b")["num_kv_shared_layers"] == 18


def test_layers_that_no_pattern_gives_are_refused():
    with pytest.raises(PorosConfigError, match=r"60 layers of several kinds, not 61"):
        shape_config("gemma-4-31b", num_layers=61)
    assert shape_config("tiny-llama", num_layers=6)["num_hidden_layers"] == 6


def test_rotary_scalings_reach_the_model():
    def frequencies(name: str, buffer: str, **changes: object) -> torch.Tensor:
        config = shape_config(name, num_layers=6) | changes
        hf_config = CONFIG_MAPPING[config["model_type"]].from_dict(config)
        hf_config.hidden_size = hf_config.vocab_size = hf_config.intermediate_size = 64
        return getattr(AutoModelForCausalLM.from_config(hf_config).model.rotary_emb, buffer)

    scaled = frequencies("llama-3.1-8b", "inv_freq")
    plain = frequencies("llama-3.1-8b", "inv_freq", rope_scaling=None)
    assert torch.equal(scaled[:20], plain[:20])
    assert (plain[-1] / scaled[-1]).item() == pytest.approx(8.0)
    gemma = frequencies("gemma-3-27b", "full_attention_inv_freq")
    assert gemma[0].item() == pytest.approx(1 / 8)


@pytest.mark.parametrize("name", ["qwen2.5-7b", "llama-3.1-8b", "phi-4", *MIXED])
def test_random_weights_train_with_finite_losses_and_no_dead_adapter(name, tmp_path, monkeypatch):
    skip_if_too_old(name)
    monkeypatch.setattr(shape_cells, "shape_config", lambda *_, **__: small_shape(name))
    plan = prepare.prepare(
        Request(
            target="shape", folder=str(tmp_path), model=name, num_steps=3, seq_len=40,
            accumulation=1, quick=True,
        )
    )  # fmt: skip
    record = run_cell(plan, plan.cells[0], None)
    steps = record.steps[1:]
    near = math.log(small_shape(name)["vocab_size"])
    assert [step.values["loss"] for step in steps] == [pytest.approx(near, abs=0.7)] * 3
    assert all(0.1 < step.values["grad_norm"] < 100 for step in steps)
    grads = {item for item in steps[0].digests if item.startswith("grad.")}
    layers = {int(match[1]) for item in grads if (match := re.search(r"layers\.(\d+)\.", item))}
    assert layers == set(range(NUM_LAYERS))
    assert not grads & {zero for step in steps for zero in step.zeros}
    assert record.end["streaming_proof"]["proved"], record.end["streaming_proof"]
