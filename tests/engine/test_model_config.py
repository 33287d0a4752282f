from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poros.arch_registry import find_architecture
from poros.errors import PorosModelError
from poros.model_config import check_config, is_prequantised, read_config

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
