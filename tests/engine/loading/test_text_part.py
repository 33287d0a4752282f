from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, BitsAndBytesConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from poros.arch_registry import find_architecture
from poros.arch_table import WRAPPERS
from poros.errors import PorosArchNotValidatedError, PorosModelError
from poros.events import Event, Warned
from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.text_part import open_source
from poros.measure.fingerprint import same_bits
from poros.model_config import SIZES, check_config, text_config
from tests.engine.loading.tiny_models import (
    CPU,
    all_tensors,
    open_stock,
    write_model,
)
from tests.engine.loading.tiny_wholes import (
    ONE_OF_EACH,
    RUNNABLE_WHOLES,
    WHOLES,
    open_text_part,
    text_tensors,
    write_whole,
)


def load(folder: Path, **settings: Any) -> BaseModel:
    base = load_base_model(
        open_source(folder), **({"device": CPU, "emit": lambda event: None} | settings)
    )
    for block in base.blocks:
        block.point_at(block.host)
    return base


def assert_same_tensors(ours: dict[str, torch.Tensor], stock: dict[str, torch.Tensor]) -> None:
    assert sorted(ours) == sorted(stock)
    assert [name for name, tensor in stock.items() if not same_bits(ours[name], tensor)] == []


def stock_text_model(folder: Path, **settings: Any) -> Any:
    """As a user opens the text part of a multimodal folder with transformers alone."""
    part = open_text_part(folder)
    model_class = getattr(transformers, part.config["architectures"][0])
    return model_class.from_pretrained(
        folder, dtype=torch.bfloat16, key_mapping=part.key_mapping, **settings
    )


def change_file(folder: Path, rename: Any) -> None:
    path = folder / "model.safetensors"
    tensors = {rename(name): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", RUNNABLE_WHOLES)
def test_every_text_tensor_has_the_bytes_that_it_has_in_the_whole(
    name: str, tmp_path: Path
) -> None:
    write_whole(tmp_path, name)
    whole = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.bfloat16)
    base = load(tmp_path, quantization="bf16")
    assert_same_tensors(all_tensors(base.model), text_tensors(whole))
    assert type(base.model).__name__ == base.architecture.hf_class
    assert base.architecture.model_type == WHOLES[name][1]


@pytest.mark.parametrize("name", RUNNABLE_WHOLES)
def test_stock_opens_the_cache_entry_as_an_ordinary_text_model(name: str, tmp_path: Path) -> None:
    whole = write_whole(tmp_path / "whole", name)
    base = load(tmp_path / "whole", cache=tmp_path / "cache")
    again = load(tmp_path / "whole", cache=tmp_path / "cache")
    assert again.from_cache
    assert base.cache_entry is not None
    opened = open_stock(base.cache_entry)
    assert type(opened) is type(base.model)
    assert_same_tensors(all_tensors(base.model), all_tensors(opened))
    assert_same_tensors(all_tensors(again.model), all_tensors(opened))
    config = json.loads((base.cache_entry / "config.json").read_text())
    assert config["model_type"] == WHOLES[name][1]
    assert "vision_config" not in config
    assert config["vocab_size"] == whole.config.text_config.vocab_size


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_nf4_has_the_bytes_of_stocks_text_class_on_the_multimodal_folder(
    name: str, tmp_path: Path
) -> None:
    write_whole(tmp_path, name)
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    stock = stock_text_model(tmp_path, quantization_config=settings, device_map={"": CPU})
    assert_same_tensors(all_tensors(load(tmp_path).model), all_tensors(stock))
    by_stock = load(tmp_path, load_strategy="gpu")
    assert_same_tensors(all_tensors(by_stock.model), all_tensors(stock))


@pytest.mark.parametrize(
    "prefix", ["model.language_model.", "language_model.model.", "model.language_model.model."]
)
def test_names_of_all_versions_of_transformers_load_to_the_same_bytes(
    prefix: str, tmp_path: Path
) -> None:
    write_whole(tmp_path, "gemma3, untied")
    before = load(tmp_path, quantization="bf16")
    part = open_text_part(tmp_path)
    stored = {part._stored[own]: own for own in part.names()}

    def rename(name: str) -> str:
        own = stored.get(name, "")
        return prefix + own.removeprefix("model.") if own.startswith("model.") else name

    change_file(tmp_path, rename)
    assert {name for name in load_file(tmp_path / "model.safetensors") if name.startswith(prefix)}
    after = load(tmp_path, quantization="bf16")
    assert_same_tensors(all_tensors(after.model), all_tensors(before.model))


def test_what_is_left_out_is_told_with_number_and_bytes(tmp_path: Path) -> None:
    write_whole(tmp_path, "qwen3_5")
    file = load_file(tmp_path / "model.safetensors")
    recorded: list[Event] = []
    load(tmp_path, emit=recorded.append)
    (told,) = [e for e in recorded if isinstance(e, Warned) and e.code == "text-part"]
    vision = [tensor for name, tensor in file.items() if "visual." in name]
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in vision)
    assert len(vision) > 10
    assert f"{len(vision)} tensors of the other parts ({num_bytes} bytes)" in told.message
    assert "Qwen3_5ForCausalLM" in told.message


def test_tensors_of_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    write_whole(tmp_path, "qwen3_5")
    path = tmp_path / "model.safetensors"
    extra = {"mtp.layers.0.mlp.up_proj.weight": torch.ones(2, 2)}
    save_file(load_file(path) | extra, path, metadata={"format": "pt"})
    assert "mtp.layers.0.mlp.up_proj.weight" in open_text_part(tmp_path).left_out_bytes


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ("model.hearing.weight", "model.hearing.weight: of no known part of a gemma3 model"),
        ("language_model.model.norm.weight", "norm.weight: of no known part"),
        ("model.language_model.norm.weight", "norm.weight: of no known part"),
    ],
)
def test_a_tensor_of_no_known_part_or_there_twice_is_refused_by_name(
    extra: str, told: str, tmp_path: Path
) -> None:
    write_whole(tmp_path, "gemma3")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    if extra in tensors:
        extra = "model.language_model.model.norm.weight"
    save_file(tensors | {extra: torch.ones(2)}, path, metadata={"format": "pt"})
    with pytest.raises(PorosModelError) as caught:
        open_source(tmp_path)
    assert told in str(caught.value)


def test_an_unknown_tensor_inside_the_text_part_is_refused_by_name(tmp_path: Path) -> None:
    write_whole(tmp_path, "mistral3")
    (one, *_) = [n for n in load_file(tmp_path / "model.safetensors") if "q_proj" in n]
    change_file(tmp_path, lambda name: name.replace("q_proj", "r_proj") if name == one else name)
    with pytest.raises(PorosModelError, match=r"no place in a mistral model: .*r_proj"):
        load(tmp_path)


def test_a_head_of_its_own_is_kept_whatever_the_two_configs_say(tmp_path: Path) -> None:
    whole = write_whole(tmp_path, "mistral3")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"tie_word_embeddings": True}))
    base = load(tmp_path, quantization="bf16")
    assert same_bits(base.model.lm_head.weight.data, whole.lm_head.weight.data)
    assert not same_bits(base.model.lm_head.weight.data, base.model.model.embed_tokens.weight.data)


def test_the_digest_is_not_the_wholes(tmp_path: Path) -> None:
    write_whole(tmp_path, "gemma3")
    part, whole = open_text_part(tmp_path), SafetensorsSource(tmp_path)
    assert part.digest() != whole.digest()
    assert part.digest() == open_text_part(tmp_path).digest()


def test_a_text_checkpoint_is_opened_as_it_is(tmp_path: Path) -> None:
    write_model(tmp_path, model_type="gemma3_text")
    assert type(open_source(tmp_path)) is SafetensorsSource


def test_a_multimodal_folder_in_4_bit_is_not_quantised_again(tmp_path: Path) -> None:
    write_whole(tmp_path / "whole", "gemma3")
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["lm_head", "vision_tower", "model.language_model.layers.1.mlp"],
    )
    quantised = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "whole", dtype=torch.bfloat16, quantization_config=settings, device_map={"": CPU}
    )
    quantised.save_pretrained(tmp_path / "quantised")
    base = load(tmp_path / "quantised")
    assert base.prequantised
    ours = all_tensors(base.model)
    stock = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in all_tensors(quantised).items()
        if name.startswith(("model.language_model.", "lm_head."))
    }
    assert_same_tensors(ours, stock)
    assert ours["model.layers.0.mlp.up_proj.weight"].dtype == torch.uint8
    assert ours["model.layers.1.mlp.up_proj.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_an_adapter_made_on_the_text_part_loads_on_stocks_text_class(
    name: str, tmp_path: Path
) -> None:
    write_whole(tmp_path / "whole", name)
    base = load(tmp_path / "whole", quantization="bf16")
    lora = LoraConfig(
        target_modules=list(base.architecture.lora_targets), init_lora_weights=False, r=4
    )
    ours = get_peft_model(base.model, lora).eval()
    ours.save_pretrained(tmp_path / "adapter")
    theirs = PeftModel.from_pretrained(stock_text_model(tmp_path / "whole"), tmp_path / "adapter")
    ids_BT = torch.arange(1, 25).view(2, 12)
    with torch.no_grad():
        assert same_bits(ours(ids_BT).logits, theirs.eval()(ids_BT).logits)
        with theirs.disable_adapter():
            assert not same_bits(ours(ids_BT).logits, theirs(ids_BT).logits)


def test_qwen3_5_needs_no_help_to_open_as_a_text_model(tmp_path: Path) -> None:
    write_whole(tmp_path, "qwen3_5")
    # As the published files have it; 5.5 writes the prefix three times over.
    change_file(tmp_path, lambda name: name.replace("language_model." * 3, "language_model."))
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    base = load(tmp_path, quantization="bf16")
    assert_same_tensors(all_tensors(base.model), all_tensors(opened))


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ({"text_config": None}, "text_config is None"),
        ({"text_config": {"model_type": "llama"}}, "'llama', which Poros does not run as one"),
        ({"architectures": ["Gemma3ForCausalLM"]}, "architectures says Gemma3ForCausalLM"),
    ],
)
def test_a_whole_that_contradicts_itself_is_refused(
    edit: dict[str, Any], told: str, tmp_path: Path
) -> None:
    write_whole(tmp_path, "gemma3")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises((PorosModelError, PorosArchNotValidatedError)) as caught:
        open_source(tmp_path)
    assert told in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_the_names_that_the_docs_give_to_stock_are_the_ones_that_load(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "architecture-support.md").read_text("utf-8")
    told = dict(re.findall(r'r"(\^[^"]+)": "([^"]+)"', page))
    write_whole(tmp_path, "gemma3")
    assert told == open_text_part(tmp_path).key_mapping
    assert next(iter(told)) == next(iter(open_text_part(tmp_path).key_mapping))  # the longest


def test_sizes_that_a_text_config_leaves_out_are_transformers_own() -> None:
    filled = [wrapper for wrapper in WRAPPERS if wrapper.text_sizes]
    assert filled
    for wrapper in filled:
        (text_type,) = wrapper.text_types
        own = CONFIG_MAPPING[text_type]()
        assert dict(wrapper.text_sizes) == {key: getattr(own, key) for key in SIZES}


def test_a_text_config_without_its_defaults_is_read_as_stock_reads_it() -> None:
    # As transformers 4 wrote google/gemma-3-4b-it.
    inner = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
    text, _ = text_config(whole | {"text_config": inner})
    check_config(text, find_architecture("gemma3_text"), where="")
    assert [text[key] for key in SIZES] == [34, 2560, 8, 262208]
    lost, _ = text_config(whole | {"text_config": inner | {"vocab_size": None}})
    with pytest.raises(PorosModelError, match="vocab_size is None"):
        check_config(lost, find_architecture("gemma3_text"), where="")


def test_a_checkpoint_with_such_a_config_loads_to_the_same_bytes(tmp_path: Path) -> None:
    write_whole(tmp_path, "gemma3", num_attention_heads=8)
    before = load(tmp_path, quantization="bf16")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["text_config"]["num_attention_heads"]
    path.write_text(json.dumps(config))
    after = load(tmp_path, quantization="bf16")
    assert after.model.config.num_attention_heads == 8
    assert_same_tensors(all_tensors(after.model), all_tensors(before.model))
