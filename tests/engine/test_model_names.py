"""Models to begin with: those that are here, known ones, what the Hub finds."""

import json

import pytest

from poros.arch_registry import architectures
from poros.demo_settings import MODEL_FOLDER
from poros.errors import PorosHubError
from poros.hub_names import HubName, parse_model
from poros.model_names import label_of, models_here, search_hub, suggestions
from tests.engine.command_line import poros_here
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers
from tests.engine.loading.hub_stub import running_stub

TINY = QWEN_7B | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "poros"))
    return tmp_path


def cached(folder, name, **changes):
    repository = folder / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    config = TINY | changes
    return write_headers(repository / "snapshots" / "abc", config, qwen_tensors(config))


def test_what_is_on_this_machine_comes_first_and_once(places):
    cached(places, "Qwen/Qwen3-8B")
    cached(places, "some/mixture", model_type="mixtral")
    found = suggestions()
    assert {one.name for one in found[:2]} == {"Qwen/Qwen3-8B", "some/mixture"}
    labels = {one.name: one.label for one in found}
    assert labels["some/mixture"] == "unsupported"
    assert labels["Qwen/Qwen3-8B"] == "certified"
    assert [one.name for one in found].count("Qwen/Qwen3-8B") == 1
    assert found[0].num_bytes > 1000


def test_a_model_without_weights_is_not_here(places):
    folder = cached(places, "some/model")
    (folder / "model.safetensors").unlink()
    assert list(models_here()) == []


def test_the_demos_model_is_named_by_its_folder(places):
    folder = places / "poros" / "models" / MODEL_FOLDER
    write_headers(folder, TINY, qwen_tensors(TINY))
    [demo] = suggestions("demo")
    assert (demo.name, demo.place) == (str(folder), "here")


def test_known_models_are_names_of_families_that_are_proved():
    known = [one for one in suggestions() if one.place == "known"]
    assert len(known) > 20
    assert {one.label for one in known} == {"certified"}
    assert all(isinstance(parse_model(one.name), HubName) for one in known)
    assert {one.model_type for one in known} <= set(architectures())
    assert label_of("gpt_neox") == "experimental"
    assert label_of("no_family") == "unsupported"


def test_all_words_must_be_in_the_name():
    assert {one.model_type for one in suggestions("gemma 4b")} == {"gemma3_text"}
    assert suggestions("no such words") == []


def test_the_hub_is_searched_and_nonsense_of_it_is_left_out(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with running_stub() as stub:
        monkeypatch.setenv("HF_ENDPOINT", stub.endpoint)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        stub.found = [
            {"id": "a/b", "config": {"model_type": "qwen2"}, "gated": "auto",
             "safetensors": {"total": 7_600_000_000}},
            {"id": "a/c", "config": None},
            {"id": "a/d", "config": {"model_type": "mixtral", "num_local_experts": 8}},
            {"id": 5}, "text",
        ]  # fmt: skip
        found = search_hub("some words")
        assert [(one.name, one.label) for one in found] == [
            ("a/b", "certified"), ("a/c", "unknown"), ("a/d", "unsupported")
        ]  # fmt: skip
        assert (found[0].num_params, found[0].is_gated) == (7.6, True)
        record = json.loads(poros_here("models", "--hub", "some", "words", "--json").stdout)
        assert record[0]["place"] == "hub"
        stub.found = {"error": "no"}
        with pytest.raises(PorosHubError, match="not the Hub's"):
            search_hub("some words")


def test_the_command_prints_a_line_a_model(places):
    cached(places, "my/model")
    ended = poros_here("models", "m")
    assert "my/model  (here)" in ended.stdout.splitlines()[0]
    assert "meta-llama/Llama-3.1-8B-Instruct  (gated)" in ended.stdout
    assert "none" in poros_here("models", "no", "such").stderr
    assert poros_here("models", "--hub").returncode == 2
    assert poros_here("models", "--hub", "x", HF_HUB_OFFLINE="1").returncode == 2
