"""`poros train` on a family that isn't in the table: refused, or run as the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from poros import arch_registry
from poros.arch_registry import VARIABLE, label, register_architecture
from poros.config import PorosConfig
from poros.errors import PorosArchNotValidatedError
from poros.events import Event, ModelLoaded, RunFinished, StepFinished, Warned
from poros.training.session import Session
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import write_model
from tests.engine.test_cli import poros
from tests.engine.training.tiny_run import tiny_settings


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(arch_registry, "_registered", {})
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module", params=["olmo", "stablelm"])
def model(request, tmp_path_factory):
    return write_own(tmp_path_factory.mktemp(request.param) / "model", request.param)


def write_own(folder: Path, model_type: str) -> Path:
    """Three layers of a family that isn't in the table."""
    write_model(folder, model_type=model_type, vocab_size=264, max_position_embeddings=128)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def train(model: Path, folder: Path, **changes: object) -> list[Event]:
    """The events of a run of two steps."""
    folder.mkdir()
    seen: list[Event] = []
    settings = tiny_settings(model, folder) | {"max_steps": 2} | changes
    Session(PorosConfig(**settings), listeners=[lambda event, line: seen.append(event)]).run()
    return seen


def model_type(model: Path) -> str:
    return json.loads((model / "config.json").read_text())["model_type"]


def warnings(events: list[Event]) -> list[str]:
    return [e.message for e in events if isinstance(e, Warned) and e.code == "W-architecture"]


def test_it_is_refused_before_a_weight_is_read(model, tmp_path):
    with pytest.raises(PorosArchNotValidatedError, match="3 layers") as caught:
        train(model, tmp_path / "run")
    assert f"{VARIABLE}={model_type(model)}" in str(caught.value)
    assert "blockwise_arch_check: warn" in str(caught.value)


def test_a_registered_one_trains_and_a_warning_says_what_it_is(model, tmp_path):
    register_architecture(model_type(model), notes="I looked at it")
    events = train(model, tmp_path / "run")
    [message] = warnings(events)
    assert f"{model_type(model)} is user_asserted" in message
    assert "nothing is claimed to be exact" in message
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert [event.step for event in steps] == [1, 2]
    assert all(event.grad_norm > 0 for event in steps)
    [loaded] = [event for event in events if isinstance(event, ModelLoaded)]
    assert (loaded.model_type, loaded.num_blocks) == (model_type(model), 3)
    assert isinstance(events[-1], RunFinished)
    assert label(model_type(model)) == "user_asserted"


@pytest.mark.parametrize(("setting", "num_warnings"), [("warn", 1), ("off", 0)])
def test_without_the_check_it_trains_unregistered(model, tmp_path, setting, num_warnings):
    events = train(model, tmp_path / "run", blockwise_arch_check=setting)
    assert len(warnings(events)) == num_warnings
    assert isinstance(events[-1], RunFinished)
    assert model_type(model) not in arch_registry.architectures()


def test_the_variable_does_it_for_the_command(tmp_path):
    model = write_own(tmp_path / "model", "olmo")
    settings = tiny_settings(model, tmp_path) | {"max_steps": 1}
    path = tmp_path / "train.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))
    done = poros("train", "--json", str(path), **{VARIABLE: "olmo=model.layers"})
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("olmo is user_asserted" in str(event.get("message")) for event in events)
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()
