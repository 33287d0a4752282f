import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from poros.measure.materials import random_rows, write_adapter, write_batches
from poros.measure.relabel import relabel
from poros.measure.shapes import shape_config

ROWS = [[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13, 14, 15]]


def written(path, **options):
    settings = {"num_steps": 2, "accumulation": 2} | options
    return load_file(write_batches(path / "b.safetensors", ROWS, **settings))


def test_padded_rows_have_a_mask_and_no_labels_on_padding(tmp_path):
    tensors = written(tmp_path, form="padding")
    mask_BT, labels_BT = tensors["0.0.attention_mask"], tensors["0.0.labels"]
    assert mask_BT.tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]
    assert labels_BT.tolist() == [[-100, -100, -100, 4, 5], [-100, -100, -100, -100, 9]]
    assert (labels_BT[mask_BT == 0] == -100).all()
    assert {tensors[f"{s}.{m}.input_ids"].shape[1] for s in (0, 1) for m in (0, 1)} == {5, 6}


def test_a_lost_padding_mask_would_show_in_the_loss(tmp_path):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape_config("tiny-llama")))
    tensors = written(tmp_path, form="padding")
    inputs = {name: tensors[f"0.0.{name}"] for name in ("input_ids", "labels")}
    with torch.no_grad():
        masked = model(**inputs, attention_mask=tensors["0.0.attention_mask"]).loss
        without = model(**inputs, attention_mask=torch.ones_like(inputs["input_ids"])).loss
    assert masked.isfinite()
    assert abs(masked - without) > 1e-4


def test_packed_documents_do_not_see_each_other(tmp_path):
    tensors = written(tmp_path, form="packing")
    mask_TT = tensors["0.0.attention_mask"][0, 0]
    assert mask_TT.dtype == torch.bool
    assert not mask_TT[5:, :5].any()
    assert tensors["0.0.position_ids"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3]]


def test_batches_of_one_shape_are_of_one_shape(tmp_path):
    for form in ("padding", "packing", "none"):
        tensors = written(tmp_path, form=form, same_shape=True)
        assert len({tensors[f"{s}.{m}.input_ids"].shape for s in (0, 1) for m in (0, 1)}) == 1


def test_an_adapter_is_zero_nowhere_and_named_as_peft_names_it(tmp_path):
    config = shape_config("tiny-llama", num_layers=2)
    folder = write_adapter(tmp_path / "a", config, targets=["q_proj"], rank=4, dropout=0.0)
    weights = load_file(folder / "adapter_model.safetensors")
    assert len(weights) == 2 * 2
    assert "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight" in weights
    assert all(tensor.any() for tensor in weights.values())
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4


def test_a_relabelled_qwen_has_biases_of_its_own_everywhere(tiny_llama, tmp_path):
    files = [relabel(tiny_llama, "qwen2", tmp_path / k) / "model.safetensors" for k in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()
    biases = [t for name, t in load_file(files[0]).items() if name.endswith(".bias")]
    assert len(biases) == 6 * 3
    assert all(bias.any() for bias in biases)
    assert len({tuple(bias.tolist()) for bias in biases}) == len(biases)


@pytest.mark.parametrize("model_type", ["mistral", "phi3"])
def test_a_relabelled_model_has_the_same_logits(tiny_llama, tmp_path, model_type):
    ids_BT = torch.tensor(random_rows(512, num_rows=2, num_tokens=9, seed=1))
    folders = tiny_llama, relabel(tiny_llama, model_type, tmp_path / model_type)
    with torch.no_grad():
        logits = [AutoModelForCausalLM.from_pretrained(f)(ids_BT).logits for f in folders]
    assert torch.equal(*logits)
