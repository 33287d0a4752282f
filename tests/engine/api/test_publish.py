from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, constants

from poros.api import publish as publishing
from poros.api.publish import publish
from poros.errors import PorosHubError
from tests.engine.api.five_lines import trainer_in
from tests.engine.api.hub_that_writes import WritingHub, running_hub
from tests.engine.training.tiny_run import write_rows

TOKEN = "hf_secretsecretsecret"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[WritingHub]:
    with running_hub() as hub:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(publishing, "HfApi", lambda: HfApi(endpoint=hub.endpoint))
        yield hub


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "poros_state").mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "poros_state" / "optimizer.safetensors").write_bytes(b"moments")
    return folder


def test_the_repository_is_made_and_the_adapter_uploaded_without_the_optimizer(hub, adapter):
    assert publish(adapter, "someone/adapter") == "someone/adapter"
    files = hub.repositories["someone/adapter"]
    assert files.keys() == {"adapter_config.json", "adapter_model.safetensors"}
    assert files["adapter_model.safetensors"] == b"weights"
    assert hub.tokens == {f"Bearer {TOKEN}"}


def test_without_a_name_it_is_the_folders_under_ones_own_account(hub, adapter):
    assert publish(adapter, None) == "me/mine"


def test_a_repository_that_is_there_gets_another_commit(hub, adapter):
    publish(adapter, "someone/adapter")
    (adapter / "adapter_model.safetensors").write_bytes(b"better")
    publish(adapter, "someone/adapter")
    assert hub.repositories["someone/adapter"]["adapter_model.safetensors"] == b"better"


@pytest.mark.parametrize(
    ("part", "status", "words", "mend"),
    [
        ("/create", 401, "does not know you", "hf auth login"),
        ("/create", 403, "does not let you write", "HF_TOKEN"),
        ("/create", 400, "refused the upload", "owner/name"),
        ("/commit/", 409, "changed the repository meanwhile", "save again"),
        ("/commit/", 404, "no such owner", "hub_model_id"),
    ],
)
def test_a_refusal_is_one_line_without_the_token(hub, adapter, part, status, words, mend):
    hub.refusals[part] = status
    with pytest.raises(PorosHubError, match=words) as caught:
        publish(adapter, "someone/adapter")
    line = caught.value.line()
    assert mend in line
    assert f"HTTP {status}" in line
    assert TOKEN not in line
    assert TOKEN not in repr(caught.value.__cause__)
    assert "\n" not in line
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("name", ["a/b/c", "spaces in it", "-"])
def test_a_name_that_is_none_is_told(hub, adapter, name):
    with pytest.raises(PorosHubError, match="no name for a repository"):
        publish(adapter, name)
    assert hub.repositories == {}


def test_no_hub_is_told(hub, adapter, monkeypatch):
    monkeypatch.setattr(publishing, "HfApi", lambda: HfApi(endpoint="http://127.0.0.1:9"))
    with pytest.raises(PorosHubError, match="the upload failed") as caught:
        publish(adapter, "someone/adapter")
    assert TOKEN not in caught.value.line()


def test_save_pushes_when_it_is_told_to(hub, tmp_path, chat_folder):
    trainer = trainer_in(tmp_path, chat_folder)
    trainer.train(str(write_rows(tmp_path / "rows.jsonl", 4)), steps=1)
    trainer.save(str(tmp_path / "quiet"))
    assert hub.repositories == {}
    trainer.save(str(tmp_path / "loud"), push_to_hub=True, hub_model_id="someone/loud")
    written = (tmp_path / "loud" / "adapter_model.safetensors").read_bytes()
    files = hub.repositories["someone/loud"]
    assert files["adapter_model.safetensors"] == written
    assert not [name for name in files if "poros_state" in name]
