from __future__ import annotations

import json
from pathlib import Path

import bitsandbytes as bnb
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.bnb import Linear4bit as LoraLinear4bit
from peft.tuners.lora.layer import LoraLayer
from safetensors.torch import load_file, save_file

from poros.errors import PorosConfigError, PorosModelError
from poros.events import Event, PhaseFinished, PhaseProgressed, Warned
from poros.loading.base_model import BaseModel, load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import (
    CPU,
    VARIANTS,
    all_tensors,
    open_stock,
    stock_4bit,
    write_model,
)


def load(folder: Path, **settings: object) -> BaseModel:
    arguments: dict[str, object] = {"device": CPU, "cache": None, "emit": lambda event: None}
    return load_base_model(SafetensorsSource(folder), **(arguments | settings))  # type: ignore[arg-type]


def bind_all(base: BaseModel) -> None:
    for block in base.blocks:
        block.point_at(block.host)


def assert_same_tensors(ours: dict[str, torch.Tensor], stock: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(stock)
    different = [name for name, tensor in stock.items() if not same_bits(ours[name], tensor)]
    assert different == []


@pytest.mark.parametrize("quantization", ["bf16", "fp16", "bf16_bitwise"])
def test_dense_weights_have_the_bytes_of_from_pretrained(quantization: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, **VARIANTS["qwen2, tied"])
    base, stock = load(folder, quantization=quantization), open_stock(folder)
    bind_all(base)
    expected = stock.to(torch.float16) if quantization == "fp16" else stock
    ours, theirs = all_tensors(base.model), all_tensors(expected)
    rotary = [name for name in theirs if "inv_freq" in name]  # .to() converts them as well
    assert_same_tensors(
        {n: t for n, t in ours.items() if n not in rotary},
        {n: t for n, t in theirs.items() if n not in rotary},
    )


def test_shards_load_to_the_bytes_of_one_file(tmp_path: Path) -> None:
    one = load(write_model(tmp_path / "one"))
    folder = write_model(tmp_path / "many", shard_size="60KB")
    many = load(folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert all(same_bits(a.host, b.host) for a, b in zip(one.blocks, many.blocks, strict=True))


def test_float32_checkpoints_are_converted_as_stock_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    path = folder / "model.safetensors"
    doubled = {n: t.float() * 1.01 for n, t in load_file(path).items()}
    save_file(doubled, path, metadata={"format": "pt"})
    base, stock = load(folder), stock_4bit(folder)
    bind_all(base)
    assert_same_tensors(all_tensors(base.model), all_tensors(stock))


@pytest.mark.parametrize("layers_per_block", [1, 2, 5])
def test_a_block_names_every_tensor_of_its_layers(layers_per_block: int, tmp_path: Path) -> None:
    base = load(write_model(tmp_path, **VARIANTS["qwen2, tied"]), layers_per_block=layers_per_block)
    # 7 linears of 4 tensors, 3 biases, 2 norms
    counts = [len(block.places) for block in base.blocks]
    assert sum(counts) == 3 * (7 * 4 + 3 + 2)
    assert counts[0] == min(layers_per_block, 3) * 33
    assert {p.name for p in base.blocks[0].places} >= {
        "0.self_attn.q_proj.weight", "0.self_attn.q_proj.weight.absmax",
        "0.self_attn.q_proj.weight.nested_absmax", "0.self_attn.q_proj.weight.offset",
        "0.self_attn.q_proj.bias", "0.input_layernorm.weight",
    }  # fmt: skip


def test_nothing_of_a_layer_stays_behind_when_its_block_is_unbound(tmp_path: Path) -> None:
    base = load(write_model(tmp_path))
    code_elements = 16 + 256
    for layer in base.layers:
        for name, parameter in layer.named_parameters():
            assert parameter.numel() == 0, name
            state = getattr(parameter, "quant_state", None)
            if state is not None:
                left = [state.absmax, state.offset, state.state2.absmax]
                assert sum(t.numel() for t in left) == 0
                assert state.code.numel() + state.state2.code.numel() == code_elements


def test_code_tables_are_shared_by_all_linears(tmp_path: Path) -> None:
    base = load(write_model(tmp_path))
    linears = [m for m in base.model.modules() if isinstance(m, bnb.nn.Linear4bit)]
    states = [linear.weight.quant_state for linear in linears]
    assert len({id(state.code) for state in states}) == 1
    assert len({id(state.state2.code) for state in states}) == 1
    assert all(linear.quant_state is linear.weight.quant_state for linear in linears)


def test_peft_takes_its_own_4bit_lora(tmp_path: Path) -> None:
    base = load(write_model(tmp_path))
    model = get_peft_model(
        base.model, LoraConfig(target_modules=list(base.architecture.lora_targets))
    )
    adapted = [module for module in model.modules() if isinstance(module, LoraLayer)]
    assert len(adapted) == 3 * 7
    assert {type(module) for module in adapted} == {LoraLinear4bit}


def test_no_linear_may_repack_its_weights_on_the_cpu(tmp_path: Path) -> None:
    base = load(write_model(tmp_path))
    linears = [m for m in base.model.modules() if isinstance(m, bnb.nn.Linear4bit)]
    assert len(linears) == 21
    assert not any(linear.support_avx512bf16_for_cpu for linear in linears)


def test_the_base_is_frozen_and_in_eval_mode_with_sdpa(tmp_path: Path) -> None:
    base = load(write_model(tmp_path))
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert not base.model.training
    assert base.model.config._attn_implementation == "sdpa"
    assert base.model.config.name_or_path == str(tmp_path)


def test_place_ends_keeps_tied_embeddings_tied(tmp_path: Path) -> None:
    base = load(write_model(tmp_path, tie_word_embeddings=True))
    place_ends(base, CPU)
    assert base.model.lm_head.weight is base.model.model.embed_tokens.weight
    assert base.resident_bytes == 128 * 64 * 2 + 64 * 2 + 2 * 8 * 4


def test_the_events_tell_the_phase_and_each_layer(tmp_path: Path) -> None:
    recorded: list[Event] = []
    load(write_model(tmp_path), emit=recorded.append)
    assert [e.done for e in recorded if isinstance(e, PhaseProgressed)] == [1, 2, 3]
    assert [e.phase for e in recorded if isinstance(e, PhaseFinished)] == ["quantise"]


def change_tensors(folder: Path, change: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "extra":
        tensors["model.layers.1.mlp.extra.weight"] = torch.ones(2)
    elif change == "shape":
        tensors[name] = tensors[name].T.contiguous()
    elif change == "dtype":
        tensors[name] = tensors[name].to(torch.int32)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("missing", "missing: model.layers.1.mlp.up_proj.weight"),
        ("extra", "no place in a llama model: model.layers.1.mlp.extra.weight"),
        ("shape", "model.layers.1.mlp.up_proj.weight is [64, 160], expected [160, 64]"),
        ("dtype", "model.layers.1.mlp.up_proj.weight is I32, expected BF16 or F16 or F32"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change: str, told: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    change_tensors(folder, change)
    with pytest.raises(PorosModelError) as caught:
        load(folder)
    assert told in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"num_hidden_layers": 2}, "3 layers stored, 2 expected from config.json"),
        ({"num_hidden_layers": 4}, "missing: model.layers.3."),
        ({"hidden_size": 32}, "expected"),
        ({"vocab_size": 256}, "model.embed_tokens.weight is [128, 64], expected [256, 64]"),
        ({"model_type": "qwen2"}, "architectures says LlamaForCausalLM"),
        ({"model_type": "qwen2", "architectures": None}, "self_attn.k_proj.bias"),
        ({"model_type": "llamma"}, "nearest: llama"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"rope_parameters": {"rope_type": "nonsense", "rope_theta": 1e4}}, "can't be built"),
        ({"tie_word_embeddings": False}, "missing: lm_head.weight"),
    ],
)
def test_a_config_of_another_model_is_refused(
    edit: dict[str, object], told: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(PorosModelError) as caught:
        load(folder)
    assert told in str(caught.value)


def test_old_rotary_tensors_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    path = folder / "model.safetensors"
    old = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(3)}
    save_file(load_file(path) | old, path, metadata={"format": "pt"})
    recorded: list[Event] = []
    load(folder, emit=recorded.append)
    (warning,) = [event for event in recorded if isinstance(event, Warned)]
    assert "3 tensors of the checkpoint (96 bytes)" in warning.message
    assert "model.layers.[0-2].self_attn.rotary_emb.inv_freq" in warning.message


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_tied_head_must_equal_the_embeddings(same: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].clone()
    head[3, 5] += 0 if same else 1
    save_file(tensors | {"lm_head.weight": head}, path, metadata={"format": "pt"})
    if same:
        assert load(folder).model.lm_head.weight.shape == (128, 64)
        return
    with pytest.raises(PorosModelError, match=r"embed_tokens\.weight differ"):
        load(folder)


def test_a_tied_checkpoint_that_stores_only_the_head_loads_like_stock(tmp_path: Path) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    base, stock = load(folder), stock_4bit(folder)
    bind_all(base)
    assert_same_tensors(all_tensors(base.model), all_tensors(stock))


def test_an_unknown_quantization_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(PorosConfigError, match="one of nf4, bf16"):
        load(write_model(tmp_path), quantization="int8")


@pytest.mark.parametrize(
    "name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_weights_that_are_no_numbers_are_refused_by_name(name: str, tmp_path: Path) -> None:
    file = write_model(tmp_path) / "model.safetensors"
    weights = load_file(file)
    weights[name].view(-1)[3] = torch.inf
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(PorosModelError, match=f"{name} holds values that are no numbers"):
        load(tmp_path)
