from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from poros import PorosConfig, PorosModel
from poros.errors import PorosConfigError, PorosModelError
from poros.measure.fingerprint import same_bits
from poros.memory_plan import MemoryPlan

IDS = torch.arange(1, 9)[None]


@pytest.fixture(autouse=True)
def _no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def adapted(model: PorosModel) -> PorosModel:
    """The model with an adapter that does something."""
    with torch.no_grad():
        for number, parameter in enumerate(model.trainable_parameters):
            torch.manual_seed(number)
            parameter.copy_(torch.randn(parameter.shape) / 8)
    return model


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def budgeted(folder: Path, budget: float | str) -> PorosModel:
    settings = {"quantization": "bf16", "vram_budget": budget}
    return PorosModel(PorosConfig(model_name_or_path=str(folder), **settings))


def plan_of(model: PorosModel) -> MemoryPlan:
    return model._streamed.plan


def test_a_budget_plans_for_a_step_of_the_users_own_loop(chat_folder):
    assert plan_of(budgeted(chat_folder, 1)).resident == (0, 1)
    least = plan_of(budgeted(chat_folder, 0.1))
    assert least == plan_of(budgeted(chat_folder, "min"))
    assert (least.head_on_host, least.embeddings_on_host, least.boundaries_on_host) == (True,) * 3
    assert (least.moments_on_host, least.adapters_on_host) == (False, False)
    assert plan_of(budgeted(chat_folder, "auto")) == MemoryPlan()


@pytest.mark.parametrize("budget", ["auto", "min"])
def test_it_has_the_resident_models_logits_and_gradients(chat_folder, tmp_path, budget):
    streamed = adapted(budgeted(chat_folder, budget))
    streamed.save(str(tmp_path / "adapter"))
    base = AutoModelForCausalLM.from_pretrained(chat_folder, dtype=torch.bfloat16)
    resident = PeftModel.from_pretrained(base, str(tmp_path / "adapter"), is_trainable=True).eval()
    assert same_bits(logits(streamed.model), logits(resident))
    for model in (streamed.model, resident):
        model(input_ids=IDS, labels=IDS).loss.backward()
    theirs = [p.grad for p in resident.parameters() if p.requires_grad]
    ours = [p.grad for p in streamed.trainable_parameters]
    assert len(ours) == len(theirs) == 28
    assert all(map(same_bits, ours, theirs))


def test_a_16_bit_merge_has_the_weights_of_pefts(chat_folder, tmp_path):
    streamed = adapted(budgeted(chat_folder, "min"))  # so that the ends come back, too
    assert streamed.model.get_output_embeddings().weight.numel() == 0
    streamed.save(str(tmp_path / "adapter"))
    base = AutoModelForCausalLM.from_pretrained(chat_folder, dtype=torch.bfloat16)
    theirs = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).merge_and_unload()
    ours = streamed.merge_and_unload()
    expected, found = theirs.state_dict(), ours.state_dict()
    assert found.keys() == expected.keys()
    assert all(same_bits(found[name], expected[name]) for name in expected)
    with pytest.raises(PorosModelError, match="unloaded by merge_and_unload"):
        _ = streamed.model


def test_an_nf4_merge_is_warned_of_and_close(chat_folder):
    streamed = adapted(PorosModel.from_pretrained(str(chat_folder)))
    adapter = logits(streamed.model)
    with streamed.model.disable_adapter():
        base = logits(streamed.model)
    with pytest.warns(UserWarning, match="4-bit"):
        merged = logits(streamed.merge_and_unload())
    assert 0 < (merged - adapter).norm() < (base - adapter).norm() / 2


def test_a_saved_adapter_is_loaded_again(chat_folder, tmp_path):
    first = adapted(PorosModel.from_pretrained(str(chat_folder), lora_rank=3))
    first.save(str(tmp_path / "adapter"))
    again = PorosModel.load(str(tmp_path / "adapter"), str(chat_folder))
    assert same_bits(logits(again.model), logits(first.model))
    assert again.generate("what?", max_new_tokens=3) == first.generate(["what?"], max_new_tokens=3)


def test_each_argument_is_seen(chat_folder):
    def load(**settings: object) -> PorosModel:
        return PorosModel.from_pretrained(str(chat_folder), **settings)

    half = load(torch_dtype="float32", lora_rank=3, lora_alpha=7, lora_dropout=0.25)
    assert half.model.dtype == torch.float32
    assert {min(p.shape) for p in half.trainable_parameters} == {3}
    config = half.model.peft_config["default"]
    assert (config.lora_alpha, config.lora_dropout) == (7, 0.25)
    one = load(quantization="fp16", lora_target_modules=["q_proj"], adapter_backend="peft")
    assert one.model.dtype == torch.float16
    assert len(one.trainable_parameters) == 4
    with pytest.raises(PorosConfigError, match="adapter_backend is 'native'"):
        load(adapter_backend="native")
