"""A run on a multimodal checkpoint trains its text part and says so."""

import pytest
import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file

from poros import events
from poros.config import PorosConfig
from poros.training.session import Session
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_wholes import ONE_OF_EACH, open_text_part, write_whole
from tests.engine.training.tiny_run import tiny_settings


@pytest.fixture(autouse=True)
def _settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_run_on_a_multimodal_model_trains_its_text_part(name, tmp_path):
    folder = tmp_path / "model"
    write_whole(folder, name, vocab_size=264, vocab_size_per_layer_input=264)
    tiny_tokenizer().save_pretrained(folder)
    settings = tiny_settings(folder, tmp_path) | {"max_steps": 2, "save_steps": 2}
    seen = []
    config = PorosConfig(**settings)
    Session(config, listeners=[lambda event, line: seen.append(event)]).run()
    steps = [event for event in seen if isinstance(event, events.StepFinished)]
    assert len(steps) == 2
    told = [e.message for e in seen if isinstance(e, events.Warned) and e.code == "text-part"]
    assert len(told) == 1
    adapter = load_file(tmp_path / "out" / "adapter" / "adapter_model.safetensors")
    assert {name.split(".layers.")[0] for name in adapter} == {"base_model.model.model"}
    part = open_text_part(folder)
    model_class = getattr(transformers, part.config["architectures"][0])
    base = model_class.from_pretrained(folder, key_mapping=part.key_mapping)
    loaded = PeftModel.from_pretrained(base, tmp_path / "out" / "adapter").state_dict()
    missing = [n for n in adapter if n.replace(".weight", ".default.weight") not in loaded]
    assert missing == []
    [said] = [event for event in seen if isinstance(event, events.ModelLoaded)]
    assert said.text_class == part.config["architectures"][0]
    assert said.key_mapping == part.key_mapping
