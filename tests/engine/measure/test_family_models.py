import pytest
import torch
from transformers import AutoModelForCausalLM

from poros.arch_registry import architectures
from poros.arch_table import WRAPPERS
from poros.errors import PorosArchNotValidatedError, PorosConfigError
from poros.measure.family_models import (
    MODELS,
    SIZES,
    WINDOW,
    families_of,
    family_names,
    refuse_without_side_tensors,
    tiny_models,
    too_old,
    write_model,
)

NAMES = (
    "qwen2", "qwen3", "qwen3_5", "gemma3", "gemma3_text", "gemma4", "llama", "mistral",
    "ministral3", "phi3", "gemma2", "olmo2", "olmo3", "granite", "smollm3", "glm4", "cohere2",
    "starcoder2", "gpt_neox",
)  # fmt: skip
HERE = [model for model in families_of("all") if not too_old(model)]


def name_of(model):
    return f"{model.family}-{model.variant}" if model.variant else model.family


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return lambda model: write_model(model, folder / name_of(model))


def test_all_of_the_table_and_of_the_multimodal_checkpoints_have_a_name():
    assert set(NAMES) <= set(family_names())
    assert len(set(family_names())) == len(family_names())
    assert {model.model_type for model in families_of("all")} == architectures().keys()
    assert {model.wrapper for model in MODELS} - {""} == {w.model_type for w in WRAPPERS}


def test_a_family_like_llama_needs_no_line():
    (model,) = tiny_models("olmo2")
    assert model not in MODELS
    assert model.config == SIZES


def test_a_name_that_is_none_is_told_with_the_nearest():
    with pytest.raises(PorosArchNotValidatedError, match="no architecture entry") as refused:
        families_of("llama,gema4")
    assert "gemma4" in refused.value.remediation


def test_mutants_of_side_tensors_need_a_family_that_has_some():
    refuse_without_side_tensors("all")
    refuse_without_side_tensors("gemma4")
    with pytest.raises(PorosConfigError, match="hidden states"):
        refuse_without_side_tensors("llama,qwen3_5")


@pytest.mark.parametrize("model", HERE, ids=name_of)
def test_a_tiny_model_has_what_a_large_one_has(model, written):
    _, text = written(model)
    stock = AutoModelForCausalLM.from_pretrained(text, dtype=torch.bfloat16)
    layers = stock.get_submodule(model.spec.layers_path)
    config = stock.config
    assert type(stock).__name__ == model.spec.hf_class
    assert len(layers) >= 6
    widths = {m.out_features for n, m in layers.named_modules() if n.endswith(".q_proj")}
    assert config.hidden_size not in widths
    if getattr(config, "layer_types", None):
        assert len(config.layer_types) == len(layers)
    if getattr(config, "sliding_window", None):
        assert config.sliding_window == WINDOW
    for name, tensor in stock.state_dict().items():
        if name.endswith(("bias", "norm.weight", "layer_scalar")):
            assert len(tensor.unique()) > 1 or tensor.numel() == 1, f"{name} is one value"


def test_gemma4_has_every_side_tensor_and_two_head_sizes():
    e_form, dense = tiny_models("gemma4")
    assert e_form.config["num_kv_shared_layers"] > 0
    assert e_form.config["hidden_size_per_layer_input"] > 0
    assert e_form.config["global_head_dim"] != e_form.config["head_dim"]
    assert e_form.more_targets == ("per_layer_model_projection",)
    assert dense.config["num_kv_shared_layers"] == dense.config["hidden_size_per_layer_input"] == 0


@pytest.mark.parametrize("model", [m for m in HERE if m.wrapper], ids=name_of)
def test_a_multimodal_checkpoint_holds_more_than_its_text_part(model, written):
    whole, text = written(model)
    sizes = [sum(f.stat().st_size for f in p.glob("*.safetensors")) for p in (whole, text)]
    assert whole != text
    assert sizes[0] > sizes[1]
