from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from poros.arch_registry import find_architecture
from poros.arch_table import TABLE, ArchSpec
from poros.errors import PorosModelError
from poros.events import Event, Warned
from poros.loading import record_check
from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.record_check import RecordError
from poros.loading.skeleton import build_skeleton
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import (
    CPU,
    FAMILIES,
    RUNNABLE,
    VARIANTS,
    all_tensors,
    is_refused,
    open_stock,
    state_facts,
    stock_4bit,
    tiny_config,
    write_model,
)

FAMILIES_HERE = [family for family in FAMILIES if not is_refused(family)]


def load(folder: Path, **settings: Any) -> BaseModel:
    base = load_base_model(
        SafetensorsSource(folder), **({"device": CPU, "emit": lambda event: None} | settings)
    )
    for block in base.blocks:
        block.point_at(block.host)
    return base


def write(folder: Path, variant: str) -> Path:
    """Untied ones are written in shards, tied ones in one file."""
    shard_size = "60KB" if "untied" in variant else "50GB"
    return write_model(folder, shard_size=shard_size, **VARIANTS[variant])


def assert_same_tensors(ours: PreTrainedModel, stock: PreTrainedModel) -> None:
    a, b = all_tensors(ours), all_tensors(stock)
    assert list(a) == list(b)
    assert [name for name in b if not same_bits(a[name], b[name])] == []


def logits_of(model: PreTrainedModel) -> Tensor:
    ids_BT = torch.arange(1, 25).view(2, 12)
    with torch.no_grad():
        logits_BTV: Tensor = model(ids_BT).logits
    return logits_BTV


def test_every_family_of_the_table_is_tested() -> None:
    in_table = {spec.model_type for spec in TABLE}
    untested = in_table - FAMILIES.keys()
    assert not untested, f"no line in tiny_models.FAMILIES for {', '.join(sorted(untested))}"
    assert FAMILIES.keys() == in_table


@pytest.mark.parametrize("variant", RUNNABLE)
def test_nf4_has_the_bytes_and_the_logits_of_from_pretrained(variant: str, tmp_path: Path) -> None:
    folder = write(tmp_path, variant)
    base = load(folder, layers_per_block=2)
    attention = base.model.config._attn_implementation
    stock = stock_4bit(folder, attn_implementation=attention)
    assert_same_tensors(base.model, stock)
    assert state_facts(base.model) == {
        name: (*facts[:-1], False) for name, facts in state_facts(stock).items()
    }
    assert same_bits(logits_of(base.model), logits_of(stock))


@pytest.mark.parametrize("variant", RUNNABLE)
def test_16_bit_weights_have_the_bytes_of_from_pretrained(variant: str, tmp_path: Path) -> None:
    folder = write(tmp_path, variant)
    assert_same_tensors(load(folder, quantization="bf16").model, open_stock(folder))


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.startswith("gemma4_text")])
def test_a_family_that_an_old_transformers_computes_otherwise_is_refused(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(**VARIANTS[variant])
    if variant in RUNNABLE:
        monkeypatch.setattr(record_check.transformers, "__version__", "5.5.0")
    with pytest.raises(
        PorosModelError, match=r"needs transformers 5\.17 or later; this is 5\.5\.0"
    ):
        build_skeleton(config, quantization="bf16", dtype=torch.bfloat16)


def test_a_version_that_is_too_old_is_told_with_the_one_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record_check.transformers, "__version__", "5.5.0")
    with pytest.raises(PorosModelError, match=r"gemma4_text needs transformers 5\.17 or later"):
        record_check.check_transformers(find_architecture("gemma4_text"))
    record_check.check_transformers(find_architecture("qwen3_5_text"))
    monkeypatch.setattr(record_check.transformers, "__version__", "5.17.0.dev0")
    record_check.check_transformers(find_architecture("gemma4_text"))


def ended(spec: ArchSpec, model: PreTrainedModel, hidden_BTD: Tensor) -> Tensor:
    """The logits as the family's record describes the model's end."""
    head: Any = model.get_output_embeddings()
    logits_BTV = F.linear(hidden_BTD, head.weight, head.bias)
    if spec.head_multiplier:
        logits_BTV = logits_BTV * getattr(model.config, spec.head_multiplier)
    if spec.head_divisor:
        logits_BTV = logits_BTV / getattr(model.config, spec.head_divisor)
    if spec.head_softcap:
        cap = getattr(model.config, spec.head_softcap)
        logits_BTV = torch.tanh(logits_BTV / cap) * cap
    return logits_BTV


@pytest.mark.parametrize("family", FAMILIES_HERE)
def test_the_record_tells_how_the_head_ends(family: str, tmp_path: Path) -> None:
    model = open_stock(write(tmp_path, f"{family}, untied"))
    spec = find_architecture(family)
    with torch.no_grad():
        hidden_BTD = model.base_model(torch.arange(1, 25).view(2, 12)).last_hidden_state
        assert same_bits(ended(spec, model, hidden_BTD), logits_of(model))
        fields = ("head_multiplier", "head_divisor", "head_softcap")
        for name in (name for name in fields if getattr(spec, name)):
            without = ended(replace(spec, **{name: ""}), model, hidden_BTD)
            assert not same_bits(without, logits_of(model)), name


@pytest.mark.parametrize("family", FAMILIES_HERE)
def test_the_adapters_go_on_every_linear_of_the_layers(family: str) -> None:
    found = set()
    for values in VARIANTS.values():
        if values["model_type"] == family:
            config = tiny_config(**values)
            skeleton = build_skeleton(config, quantization="bf16", dtype=torch.bfloat16)
            found |= {
                name.rpartition(".")[2]
                for layer in skeleton.layers
                for name, module in layer.named_modules()
                if isinstance(module, nn.Linear)
            }
    assert found == set(find_architecture(family).lora_targets)


LIES: dict[str, tuple[dict[str, Any], str]] = {
    "layers elsewhere": ({"layers_path": "model.blocks"}, "layers_path 'model.blocks'"),
    "layers inside a layer": ({"layers_path": "model.layers.0"}, "layers_path 'model.layers.0'"),
    "one resident too few": (
        {"resident": ("model.embed_tokens", "model.rotary_emb", "lm_head")},
        "neither in a layer nor among the resident modules: model.norm.weight",
    ),
    "a resident that is not there": (
        {"resident": (*find_architecture("llama").resident, "model.wte")},
        "resident names what the model has not: model.wte",
    ),
    "the layers resident": (
        {"resident": ("model", "lm_head")},
        "resident names what holds the layers, or lies in them: model",
    ),
    "a part of a layer resident": (
        {"resident": (*find_architecture("llama").resident, "model.layers.1.mlp")},
        "resident names what holds the layers, or lies in them: model.layers.1.mlp",
    ),
    "another class": ({"hf_class": "MistralForCausalLM"}, "MistralForCausalLM"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_record_that_lies_is_refused_by_the_field(lie: str, tmp_path: Path) -> None:
    changes, told = LIES[lie]
    record = replace(find_architecture("llama"), **changes)
    folder = write_model(tmp_path)
    with pytest.raises(PorosModelError) as caught:
        load(folder, architecture=record)
    assert told in str(caught.value)


def test_a_record_that_lies_costs_no_sound_cache_entry(tmp_path: Path) -> None:
    folder, cache = write_model(tmp_path / "model"), tmp_path / "cache"
    assert not load(folder, cache=cache).from_cache
    lying = replace(find_architecture("llama"), layers_path="model.blocks")
    with pytest.raises(RecordError, match=re.escape("model.blocks")):
        load(folder, cache=cache, architecture=lying)
    assert load(folder, cache=cache).from_cache


def test_float32_modules_are_refused_and_not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "_keep_in_fp32_modules_strict", ["norm"])
    with pytest.raises(PorosModelError, match="keeps modules in float32, which Poros can't: norm"):
        build_skeleton(tiny_config(), quantization="bf16", dtype=torch.bfloat16)


def one_layer_more(values: dict[str, Any]) -> dict[str, Any]:
    longer = {"num_hidden_layers": values.get("num_hidden_layers", 3) + 1}
    for key in ("layer_types", "no_rope_layers"):
        if key in values:
            longer[key] = [values[key][0], *values[key]]
    return longer


@pytest.mark.parametrize("family", FAMILIES_HERE)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("layers", r"(3|4) layers stored, (4|5) expected"),
        ("vocabulary", r"is \[128, \d+\], expected \[192, \d+\]"),
        ("width", r"expected \[128, 128\]"),
    ],
)
def test_a_config_that_disagrees_with_its_weights_is_refused_by_name(
    what: str, told: str, family: str, tmp_path: Path
) -> None:
    values = VARIANTS[f"{family}, untied"]
    edits = {
        "layers": one_layer_more(values),
        "vocabulary": {"vocab_size": 192},
        "width": {"hidden_size": 128},
    }
    source = SafetensorsSource(write_model(tmp_path, **values))
    source.config = tiny_config(**(values | edits[what]))
    with pytest.raises(PorosModelError) as caught:
        load_base_model(source, device=CPU, emit=lambda event: None)
    assert re.search(told, str(caught.value))
    assert str(tmp_path) in str(caught.value)


NO_USE = {
    "gpt_neox, untied": "gpt_neox.layers.1.attention.masked_bias",
    "gemma4_text, E-form": "model.layers.4.self_attn.k_proj.weight",
    "qwen3_5_text, untied": "mtp.fc.weight",
    "llama, untied": "model.layers.0.self_attn.rotary_emb.inv_freq",
}


@pytest.mark.parametrize(
    ("variant", "name"), [item for item in NO_USE.items() if item[0] in RUNNABLE]
)
def test_tensors_that_a_family_has_no_use_for_are_left_out_and_told(
    variant: str, name: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, **VARIANTS[variant])
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(2)}, path, metadata={"format": "pt"})
    recorded: list[Event] = []
    load(folder, emit=recorded.append)
    (warning,) = [event for event in recorded if isinstance(event, Warned)]
    assert warning.code == "tensors-left-out"
    assert name in warning.message


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path, **VARIANTS["gpt_neox, untied"])
    path = folder / "model.safetensors"
    tensors = load_file(path)
    twice = tensors["embed_out.weight"].clone()
    save_file(tensors | {"lm_head.weight": twice}, path, metadata={"format": "pt"})
    with pytest.raises(PorosModelError, match=r"no place in a gpt_neox model: (embed_out|lm_head)"):
        load(folder)


@pytest.mark.parametrize("variant", [v for v in RUNNABLE if "E-form" in v])
def test_linears_outside_the_layers_are_quantised_and_stay(variant: str, tmp_path: Path) -> None:
    base = load(write(tmp_path, variant))
    projection = base.model.get_submodule("model.per_layer_model_projection")
    weight: Any = projection.weight
    assert weight.dtype == torch.uint8
    state = weight.quant_state
    held = [weight, state.absmax, state.offset, state.state2.absmax]
    assert all(tensor.numel() > 0 for tensor in held)
    assert base.resident_bytes > sum(t.numel() * t.element_size() for t in held)
