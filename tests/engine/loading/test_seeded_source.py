from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
import torch

from poros.arch_registry import find_architecture
from poros.errors import PorosModelError
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.record_check import check_transformers
from poros.loading.seeded_source import SeededSource, write_checkpoint
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import CPU, KINDS, VARIANTS, tiny_config, write_model
from tests.engine.measure.small_shapes import small_shape

QWEN_32B = {
    "model_type": "qwen2",
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
}


def own_name(stored: str) -> str:
    """Without what some versions of transformers make of a name when they write it."""
    return stored.replace("embed_out.", "lm_head.").replace("model.language_model.", "model.")


@pytest.mark.parametrize("variant", KINDS)
def test_its_headers_are_those_of_a_real_checkpoint(variant: str, tmp_path: Path) -> None:
    real = SafetensorsSource(write_model(tmp_path, **VARIANTS[variant]))
    seeded = SeededSource(real.config, seed=0)
    assert {own_name(n): seeded.header(n) for n in seeded.names()} == {
        own_name(n): real.header(n) for n in real.names()
    }


def test_values_depend_on_seed_and_name_and_not_on_the_order() -> None:
    one, again, other = (SeededSource(tiny_config(), seed) for seed in (1, 1, 2))
    names = one.names()
    forward = {name: one.read(name, CPU) for name in names}
    for name in reversed(names):
        assert same_bits(again.read(name, CPU), forward[name])
        assert same_bits(again.read_to_host(name, CPU), forward[name])
    matrices = [name for name in names if forward[name].dim() == 2]
    assert not any(same_bits(other.read(name, CPU), forward[name]) for name in matrices)
    assert len({tuple(forward[name].flatten()[:8].tolist()) for name in matrices}) == len(matrices)


def test_matrices_are_normal_and_norms_are_near_one() -> None:
    source = SeededSource(tiny_config(model_type="qwen2"), seed=1)
    embeddings = source.read("model.embed_tokens.weight", CPU)
    assert embeddings.dtype == torch.bfloat16
    assert 0.018 < embeddings.float().std() < 0.022
    norm = source.read("model.norm.weight", CPU)
    assert norm.dtype == torch.bfloat16
    assert 0 < (norm - 1).abs().max() < 0.1
    bias = source.read("model.layers.0.self_attn.q_proj.bias", CPU)
    assert 0 < bias.float().abs().max() < 0.1


def first_layer(shape: str) -> dict[str, torch.Tensor]:
    source = SeededSource(small_shape(shape), seed=1)
    head = "model.layers.0."
    return {
        name.removeprefix(head): source.read(name, CPU).float()
        for name in source.names()
        if name.startswith(head)
    }


def test_norms_that_add_one_themselves_are_near_zero() -> None:
    for shape in ("gemma-3-27b", "qwen3.5-27b"):
        norm = first_layer(shape)["input_layernorm.weight"]
        assert 0 < norm.abs().max() < 0.1, shape


def test_recurrent_layers_start_as_their_own_initialiser_wants() -> None:
    layer = first_layer("qwen3.5-27b")
    rates = layer["linear_attn.A_log"].exp()
    assert 0 < rates.min() < rates.max() < 17
    assert len(set(rates.tolist())) == len(rates)
    for name in ("linear_attn.dt_bias", "linear_attn.norm.weight"):
        assert 0 < (layer[name] - 1).abs().max() < 0.1, name
    assert 0.25 < layer["linear_attn.conv1d.weight"].std() < 0.35


def test_a_layers_scalar_is_near_one() -> None:
    try:
        check_transformers(find_architecture("gemma4_text"))
    except PorosModelError as error:
        pytest.skip(str(error))
    scalar = first_layer("gemma-4-31b")["layer_scalar"]
    assert scalar.shape == (1,)
    assert 0 < abs(scalar.item() - 1) < 0.1


def test_first_values_draw_from_no_generator_of_the_caller() -> None:
    source = SeededSource(small_shape("qwen3.5-27b"), seed=1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    source.read("model.layers.0.linear_attn.A_log", CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_digest_tells_seeds_and_configs_apart() -> None:
    sources = [
        SeededSource(tiny_config(), 1),
        SeededSource(tiny_config(), 2),
        SeededSource(tiny_config(vocab_size=130), 1),
    ]
    assert len({source.digest() for source in sources}) == 3
    assert SeededSource(tiny_config(), 1).digest() == sources[0].digest()


def test_a_65_gb_shape_costs_no_memory_until_it_is_read() -> None:
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = SeededSource(QWEN_32B, seed=0)
    assert sum(source.header(name).num_bytes for name in source.names()) > 65e9
    bias = source.read("model.layers.63.self_attn.k_proj.bias", CPU)
    assert bias.shape == (1024,)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 200_000


def test_written_as_files_it_loads_to_the_same_blocks(tmp_path: Path) -> None:
    source = SeededSource(tiny_config(model_type="qwen2"), seed=5)
    write_checkpoint(source, tmp_path, device=CPU, max_shard_bytes=50_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    made = load_base_model(source, device=CPU, emit=lambda event: None)
    read = load_base_model(SafetensorsSource(tmp_path), device=CPU, emit=lambda event: None)
    assert len(made.blocks) == 3
    for a, b in zip(made.blocks, read.blocks, strict=True):
        assert same_bits(a.host, b.host)
    assert same_bits(made.model.lm_head.weight, read.model.lm_head.weight)
