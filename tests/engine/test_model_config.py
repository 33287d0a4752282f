from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poros.arch_registry import find_architecture
from poros.arch_table import WRAPPERS
from poros.errors import PorosModelError
from poros.model_config import check_config, is_prequantised, read_config, text_config, text_name

SOUND: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 128,
}


def failure(config: dict[str, Any], **settings: Any) -> str:
    with pytest.raises(PorosModelError) as caught:
        check_config(config, find_architecture("llama"), where="here", **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    "extra",
    [{}, {"_attn_implementation": "sdpa"}, {"attn_implementation": None}, {"unknown": {"a": 1}}],
)
def test_an_ordinary_config_passes(extra: dict[str, Any]) -> None:
    check_config(SOUND | extra, find_architecture("llama"), where="here")


@pytest.mark.parametrize(
    "extra",
    [
        {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}},
        {"text_config": {"auto_map": {"AutoConfig": "x.Y"}}},
        {"_attn_implementation": "kernels-community/flash-attn"},
        {"_attn_implementation_internal": "someone/kernel"},
        {"attn_implementation": {"": "someone/kernel"}},
        {"experts_implementation": "someone/kernel"},
        {"use_kernels": True},
        {"kernel_config": {"a": "b"}},
        {"transformers_weights": "../other.safetensors"},
    ],
)
def test_a_config_that_brings_code_or_kernels_is_refused(extra: dict[str, Any]) -> None:
    message = failure(SOUND | extra)
    assert "delete" in message
    assert "here" in message


def test_auto_map_passes_only_by_the_explicit_field() -> None:
    config = SOUND | {"auto_map": {"AutoConfig": "x.Y"}}
    check_config(config, find_architecture("llama"), where="here", trust_remote_code=True)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "architectures says MistralForCausalLM"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 2**70}, "no model has that many"),
        ({"architectures": "LlamaForCausalLM"}, "expected a list of classes"),
        ({"architectures": [1]}, "expected a list of classes"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0"),
        ({"vocab_size": True}, "vocab_size is True"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(extra: dict[str, Any], told: str) -> None:
    assert told in failure(SOUND | extra)


@pytest.mark.parametrize(
    ("quant", "told"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq"}, "awq"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "not NF4"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
            "not NF4",
        ),
        ("nonsense", "None"),
    ],
)
def test_weights_quantised_otherwise_are_refused(quant: object, told: str) -> None:
    with pytest.raises(PorosModelError, match="quantised already") as caught:
        is_prequantised({"quantization_config": quant}, where="here")
    assert told in str(caught.value)


def test_nf4_weights_are_recognised() -> None:
    quant = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert is_prequantised({"quantization_config": quant}, where="here")
    assert not is_prequantised({}, where="here")


@pytest.mark.parametrize("content", ["", "{", "[]", "<html>", "[" * 100_000])
def test_a_config_file_that_is_no_json_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(PorosModelError, match="JSON"):
        read_config(tmp_path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(PorosModelError, match=r"no config\.json"):
        read_config(tmp_path)


def test_a_config_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SOUND))
    assert read_config(tmp_path) == SOUND


# Facts of Qwen3.5-27B, Qwen3.6-27B and Gemma 4 31B, as their config.json has them.
QWEN3_5: dict[str, Any] = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 24,
        "vocab_size": 248320,
    },
    "tie_word_embeddings": False,
    "vision_config": {"model_type": "qwen3_5", "hidden_size": 1152},
}
GEMMA4: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "dtype": "bfloat16",
    "eos_token_id": [1, 106],
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text",
        "eos_token_id": 1,
        "num_hidden_layers": 60,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "vocab_size": 262144,
        "tie_word_embeddings": True,
        "pad_token_id": None,
    },
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "vision_config": {"model_type": "gemma4_vision", "hidden_size": 1152},
}


@pytest.mark.parametrize("whole", [QWEN3_5, GEMMA4], ids=["qwen3_5", "gemma4"])
def test_a_text_part_is_an_ordinary_config(whole: dict[str, Any]) -> None:
    text, wrapper = text_config(whole)
    assert wrapper is not None
    assert wrapper.model_type == whole["model_type"]
    spec = find_architecture(text["model_type"])
    check_config(text, spec, where="here")
    assert text["architectures"] == [spec.hf_class]
    assert text["vocab_size"] == whole["text_config"]["vocab_size"]
    assert not {"vision_config", "text_config", "image_token_id"} & text.keys()


def test_a_text_part_takes_from_the_whole_what_it_lacks_itself() -> None:
    text, _ = text_config(GEMMA4)
    assert (text["dtype"], text["eos_token_id"], text["pad_token_id"]) == ("bfloat16", 1, 0)
    assert text_config(QWEN3_5)[0]["tie_word_embeddings"] is False


def test_a_text_checkpoint_is_its_own_text_part() -> None:
    assert text_config(SOUND) == (SOUND, None)


@pytest.mark.parametrize(
    ("inner", "outer", "has_head", "tied"),
    [
        (True, True, True, True),
        (False, False, False, False),
        (None, True, True, True),
        (True, None, False, True),
        (False, True, True, False),  # Mistral Small written anew by transformers 5
        (False, True, False, True),
        (None, None, True, False),  # Mistral Small as it was published
        (None, None, False, True),  # Gemma 3 as it was published
        (False, True, None, True),
        (None, None, None, None),
    ],
)
def test_a_stored_head_decides_where_the_configs_leave_it_open(
    inner: bool | None, outer: bool | None, has_head: bool | None, tied: bool | None
) -> None:
    inside = GEMMA4["text_config"] | {"tie_word_embeddings": inner}
    whole = GEMMA4 | {"text_config": inside, "tie_word_embeddings": outer}
    text, _ = text_config(whole, has_head=has_head)
    assert text.get("tie_word_embeddings", "left out") is (tied if tied is not None else "left out")


@pytest.mark.parametrize(
    "extra",
    [
        {"auto_map": {"AutoConfig": "x.Y"}},
        {"vision_config": {"auto_map": {"AutoConfig": "x.Y"}}},
        {"_attn_implementation": "someone/kernel"},
        {"vision_config": {"kernel_config": {"a": "b"}}},
    ],
)
def test_what_is_dangerous_in_the_whole_is_refused_in_its_text_part(extra: dict[str, Any]) -> None:
    text, _ = text_config(GEMMA4 | extra)
    with pytest.raises(PorosModelError, match="delete"):
        check_config(text, find_architecture("gemma4_text"), where="here")


def test_modules_left_in_16_bits_get_the_text_models_names() -> None:
    quant = {
        "quant_method": "bitsandbytes",
        "llm_int8_skip_modules": ["lm_head", "model.language_model.layers.3.mlp", "vision_tower"],
    }
    text, _ = text_config(GEMMA4 | {"quantization_config": quant})
    assert text["quantization_config"]["llm_int8_skip_modules"] == [
        "lm_head", "model.layers.3.mlp", "vision_tower",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "own"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("model.language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.norm.weight", None),
    ],
)
def test_stored_names_of_every_version_are_known(stored: str, own: str | None) -> None:
    (gemma3,) = [wrapper for wrapper in WRAPPERS if wrapper.model_type == "gemma3"]
    assert text_name(stored, gemma3) == own
