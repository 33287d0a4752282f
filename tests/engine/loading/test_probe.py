"""A model outside the table is looked through, refused with what was found, or run by it."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from poros import arch_registry
from poros.arch_registry import VARIABLE, label_of, register_architecture
from poros.arch_table import TABLE
from poros.errors import PorosArchNotValidatedError, PorosModelError
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.probe import _probe, architecture_of, probe
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import CPU, all_tensors, stock_4bit, tiny_config, write_model

LLAMA_LIKE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(arch_registry, "_registered", {})


@pytest.mark.parametrize(
    ("model_type", "layers_path", "resident", "linears"),
    [
        ("olmo", "model.layers", {"model.embed_tokens", "model.rotary_emb", "lm_head"}, LLAMA_LIKE),
        (
            "stablelm",
            "model.layers",
            {"model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"},
            LLAMA_LIKE,
        ),
        (
            "opt",
            "model.decoder.layers",
            {
                "model.decoder.embed_tokens", "model.decoder.embed_positions",
                "model.decoder.final_layer_norm", "lm_head",
            },
            ("k_proj", "v_proj", "q_proj", "out_proj", "fc1", "fc2"),
        ),
        (
            "phi",
            "model.layers",
            {"model.embed_tokens", "model.rotary_emb", "model.final_layernorm", "lm_head"},
            ("q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"),
        ),
    ],
)  # fmt: skip
def test_what_lies_where_is_found_without_a_name(model_type, layers_path, resident, linears):
    found = probe(tiny_config(model_type=model_type), where="here")
    assert found.layers_path == layers_path
    assert set(found.resident) == resident
    assert found.lora_targets == linears
    assert found.num_layers == 3
    assert not found.recurrent


@pytest.mark.parametrize("spec", [s for s in TABLE if s.model_type in ("llama", "phi3", "qwen3")])
def test_the_probe_finds_what_the_table_says(spec):
    found = probe(tiny_config(model_type=spec.model_type), where="here")
    assert found.hf_class == spec.hf_class
    assert found.layers_path == spec.layers_path
    assert set(found.resident) == set(spec.resident)
    assert set(found.lora_targets) == set(spec.lora_targets)


def test_a_state_along_the_sequence_is_taken_for_one():
    assert probe(tiny_config(model_type="mamba"), where="here").recurrent


def test_an_unknown_family_is_refused_with_what_was_found_and_how_to_run_it():
    with pytest.raises(PorosArchNotValidatedError) as caught:
        architecture_of(tiny_config(model_type="olmo"), where="a/model")
    line = str(caught.value)
    assert "\n" not in line
    assert "3 layers (OlmoDecoderLayer) at model.layers" in line
    assert "outside them model.embed_tokens" in line
    assert f"{VARIABLE}=olmo" in line
    assert 'register_architecture("olmo")' in line
    assert caught.value.where == "a/model"


@pytest.mark.parametrize("arch_check", ["warn", "off"])
def test_without_the_check_it_is_run_by_what_was_found(arch_check):
    spec = architecture_of(tiny_config(model_type="olmo"), arch_check=arch_check)
    assert spec.hf_class == "OlmoForCausalLM"
    assert label_of(spec) == "user_asserted"
    assert "olmo" not in arch_registry.architectures()


def test_what_the_user_gave_is_kept_and_the_rest_is_found():
    register_architecture("olmo", lora_targets=["q_proj"], notes="mine")
    spec = architecture_of(tiny_config(model_type="olmo"))
    assert spec.lora_targets == ("q_proj",)
    assert spec.layers_path == "model.layers"
    assert spec.notes == "mine"


def test_a_layers_path_that_leads_elsewhere_is_refused_by_name(monkeypatch):
    for path, kind in (("model.blocks", "nothing"), ("model.embed_tokens", "a Embedding")):
        monkeypatch.setenv(VARIABLE, f"olmo={path}")
        with pytest.raises(PorosArchNotValidatedError, match=f"'{path}' leads to {kind}"):
            architecture_of(tiny_config(model_type="olmo"))


def test_a_resident_list_that_lacks_a_module_is_refused_by_name(tmp_path):
    register_architecture("olmo", resident=["model.embed_tokens", "lm_head"])
    write_model(tmp_path, model_type="olmo")
    with pytest.raises(PorosModelError, match=r"model\.rotary_emb"):
        load_base_model(SafetensorsSource(tmp_path), device=CPU, emit=lambda event: None)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mixtral"}, "fuses the experts"),
        ({"model_type": "gemma4_text", "enable_moe_block": True}, "fuses the experts"),
        ({"model_type": "nonsense"}, "no architecture entry"),
        ({}, "no architecture entry for model_type None"),
        ({"model_type": "t5gemma", "num_hidden_layers": 2}, "no causal language model"),
    ],
)
def test_what_cant_be_looked_through_is_refused_in_one_line(config, words):
    for arch_check in ("error", "warn", "off"):
        with pytest.raises(PorosArchNotValidatedError, match=re.escape(words)):
            architecture_of(config, arch_check=arch_check)


def test_a_config_with_names_of_old_is_refused_with_them():
    with pytest.raises(
        PorosArchNotValidatedError, match="no hidden_size; GPT2Config calls it n_embd"
    ):
        architecture_of(tiny_config(model_type="gpt2"), arch_check="warn")


def linear_layers(num_layers):
    return nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(num_layers))


class Toy(nn.Module):
    """A stack of layers, and what else is asked for."""

    def __init__(self, **parts):
        super().__init__()
        self.embed = nn.Embedding(4, 4)
        for name, part in parts.items():
            setattr(self, name, part)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({}, "Toy has no list of 3 layers with linears, expected one; lists in it: none"),
        ({"layers": linear_layers(2)}, r"no list of 3 layers.*layers \(2\)"),
        (
            {"layers": nn.ModuleList(nn.Sequential(nn.LayerNorm(4)) for _ in range(3))},
            r"no list of 3 layers.*layers \(3\)",
        ),
        ({"encoder": linear_layers(3), "decoder": linear_layers(3)}, "Toy has 2 lists of 3 layers"),
        (
            {"layers": linear_layers(3), "scale": nn.Parameter(torch.ones(4))},
            "Toy holds the layers and scale of its own",
        ),
        (
            {
                "layers": nn.ModuleList(
                    nn.ModuleDict(
                        {
                            "a": nn.Linear(4, 4),
                            "experts": nn.ParameterList([nn.Parameter(torch.ones(2, 4, 4))]),
                        }
                    )
                    for _ in range(3)
                )
            },
            r"layers\.0\.experts\.0 has 3 dimensions",
        ),
    ],
)
def test_what_is_no_single_stack_of_layers_is_refused_by_what_was_found(parts, words, monkeypatch):
    _probe.cache_clear()
    monkeypatch.setattr("poros.loading.probe._build", lambda config, where: Toy(**parts))
    with pytest.raises(PorosArchNotValidatedError, match=words):
        probe({"model_type": "toy", "num_hidden_layers": 3}, where="here")


def test_a_list_inside_a_layer_is_not_taken_for_the_layers(monkeypatch):
    _probe.cache_clear()
    layers = nn.ModuleList(linear_layers(3) for _ in range(3))
    monkeypatch.setattr("poros.loading.probe._build", lambda config, where: Toy(layers=layers))
    found = probe({"model_type": "toy", "num_hidden_layers": 3}, where="here")
    assert (found.layers_path, found.resident) == ("layers", ("embed",))
    _probe.cache_clear()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "many"}, "can't be built"),
        ({"_attn_implementation": "someone/kernels"}, "names a kernel to fetch"),
        ({"kernel_config": {"a": "b"}}, "kernel_config is not accepted"),
    ],
)
def test_a_config_that_asks_for_more_than_arithmetic_is_refused_before_it_is_built(changes, words):
    with pytest.raises(PorosModelError, match=words):
        architecture_of(tiny_config(model_type="olmo") | changes, arch_check="warn")


def test_an_asserted_family_loads_with_stocks_bytes(tmp_path):
    register_architecture("stablelm")
    write_model(tmp_path, model_type="stablelm")
    base = load_base_model(SafetensorsSource(tmp_path), device=CPU, emit=lambda event: None)
    for block in base.blocks:
        block.point_at(block.host)
    ours, stock = all_tensors(base.model), all_tensors(stock_4bit(tmp_path))
    assert list(ours) == list(stock)
    assert [name for name in stock if not same_bits(ours[name], stock[name])] == []
    assert sum(".absmax" in name for name in stock) == 3 * len(LLAMA_LIKE)
