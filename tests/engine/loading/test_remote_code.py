"""A model folder is data: nothing in it may run, whatever its config asks for."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from poros.errors import PorosModelError
from poros.events import Event, Warned
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from tests.engine.loading.tiny_models import CPU, write_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "model")
    (folder / "modeling_evil.py").write_text(
        f"open({str(tmp_path / 'canary')!r}, 'w')\nfrom transformers import LlamaForCausalLM\n"
        "class Evil(LlamaForCausalLM): pass\n"
    )
    path = folder / "config.json"
    asked = {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}
    path.write_text(json.dumps(json.loads(path.read_text()) | asked))
    return folder


def test_auto_map_is_refused_in_a_thread_too_and_its_code_never_runs(folder: Path) -> None:
    caught: list[BaseException] = []

    def load() -> None:
        try:
            load_base_model(SafetensorsSource(folder), device=CPU, emit=lambda event: None)
        except PorosModelError as error:
            caught.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert "modeling_evil.Evil" in str(caught[0])
    assert not (folder.parent / "canary").exists()


def test_trust_loads_our_own_class_with_a_warning_and_runs_nothing(folder: Path) -> None:
    recorded: list[Event] = []
    base = load_base_model(
        SafetensorsSource(folder), device=CPU, emit=recorded.append, trust_remote_code=True
    )
    assert type(base.model).__name__ == "LlamaForCausalLM"
    assert [event.code for event in recorded if isinstance(event, Warned)] == ["remote-code"]
    assert not (folder.parent / "canary").exists()


def test_pickled_weights_beside_the_safetensors_are_never_opened(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in json.loads((folder / "config.json").read_text()).items()
                    if k != "auto_map"})
    )  # fmt: skip
    canary = folder.parent / "canary"
    evil = f"cos\nsystem\n(S'touch {canary}'\ntR.".encode()
    for name in ("pytorch_model.bin", "training_args.bin", "adapter_model.bin"):
        (folder / name).write_bytes(evil)
    assert load_base_model(SafetensorsSource(folder), device=CPU, emit=lambda event: None).blocks
    (folder / "model.safetensors").unlink()
    with pytest.raises(PorosModelError, match="Poros never unpickles"):
        SafetensorsSource(folder)
    assert not canary.exists()
