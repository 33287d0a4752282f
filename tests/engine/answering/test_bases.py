"""What an adapter is asked on: a base that is not there, of another shape, or a whole model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poros.adapter_files import find_adapter
from poros.answering import load as load_module
from poros.answering.generate import prompt_ids, question
from poros.answering.load import _settings, load_speaker
from poros.answering.speaker import Sampling
from poros.errors import PorosHubError, PorosModelError
from tests.engine.command_line import poros_here
from tests.engine.export.adapters import silent, write_adapter, write_base


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_a_whole_model_answers_as_an_adapter_s_base_does_alone(base: Path, adapter: Path) -> None:
    whole, both = (
        load_speaker(str(path), emit=silent, quantization="bf16") for path in (base, adapter)
    )
    ids, short = prompt_ids(whole, question("Who are you?", None)), Sampling(max_new_tokens=6)
    assert whole.answer(ids, short) == both.answer(ids, short, adapted=False)
    assert whole.answer(ids, short) != both.answer(ids, short)


def test_a_whole_model_is_asked_in_its_own_precision(base: Path, tmp_path: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    folder = tmp_path / "model"
    folder.mkdir()
    for change, expected in (
        ({"dtype": "bfloat16"}, "bf16"),
        ({"dtype": "float16"}, "fp16"),
        ({"dtype": "float32"}, "bf16"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "nf4"),
    ):
        (folder / "config.json").write_text(json.dumps(config | change))
        found = find_adapter(str(folder), whole_models=True)
        assert _settings(found, str(folder), "cpu", None, "auto").quantization == expected
        assert _settings(found, str(folder), "cpu", "nf4", "auto").quantization == "nf4"


def test_a_whole_model_has_nothing_to_compare_and_can_t_be_merged(base: Path) -> None:
    compared = poros_here("generate", str(base), "-p", "x", "--compare")
    assert compared.returncode == 2
    assert "a whole model, which has no base beside it" in compared.stderr
    with pytest.raises(PorosModelError, match="a whole model, and an adapter is wanted"):
        find_adapter(str(base))


def test_another_base_s_shape_is_told_with_the_adapter_s(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = write_base(tmp_path / "wide", hidden_size=128, tie_word_embeddings=False)
    flat = write_base(tmp_path / "flat", num_hidden_layers=1, tie_word_embeddings=False)
    told = r"has shape \[(4, 64|64, 4)\], this base wants \[(4, 128|128, 4)\]"
    options = {"base": str(wide), "quantization": "bf16"}
    for name in ("load_configured", "_refuse_other_shapes"):  # no weight is read for the first
        with monkeypatch.context() as patch:
            patch.setattr(load_module, name, lambda *_: None)
            with pytest.raises(PorosModelError, match=told):
                load_speaker(str(adapter), emit=silent, **options)
    with pytest.raises(PorosModelError, match=r"tensors that this base has no place for, as "):
        load_speaker(str(adapter), emit=silent, base=str(flat), quantization="bf16")


@pytest.mark.parametrize("kind", ["a name", "a folder"])
@pytest.mark.parametrize("command", ["generate", "export"])
def test_a_base_that_is_not_here_is_told_with_the_option_that_names_it(
    adapter: Path, tmp_path: Path, kind: str, command: str
) -> None:
    named = "some/model" if kind == "a name" else str(tmp_path / "gone")
    copy = tmp_path / "adapter"
    copy.mkdir()
    for file in adapter.iterdir():
        text = file.read_bytes()
        if file.name == "adapter_config.json":
            config = find_adapter(str(adapter)).config
            text = text.replace(str(config["base_model_name_or_path"]).encode(), named.encode())
        (copy / file.name).write_bytes(text)
    rest = ["-p", "x"] if command == "generate" else ["-o", str(tmp_path / "merged")]
    ended = poros_here(command, str(copy), *rest)
    assert ended.returncode == (PorosHubError if kind == "a name" else PorosModelError).exit_code
    assert f"model {named}, which {copy} names as its base" in ended.stderr
    assert "--base FOLDER says where the base lies" in ended.stderr
    assert "download" not in ended.stderr


def test_trained_tokens_are_refused_by_name_with_a_way_that_works(
    base: Path, tmp_path: Path
) -> None:
    trained = write_adapter(tmp_path / "a", base, trainable_token_indices=[3, 4])
    for command in (["generate", str(trained), "-p", "x"], ["export", str(trained), "-o", "m"]):
        ended = poros_here(*command)
        assert ended.returncode == 4
        assert "trainable_token_indices" in ended.stderr
        assert "with PEFT" in ended.stderr
