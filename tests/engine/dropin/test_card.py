import pytest

import poros
from tests.engine.dropin.live import live_model
from tests.engine.loading.tiny_models import open_stock, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


def card_of(model, capsys, **settings):
    """What is printed, by name."""
    capsys.readouterr()
    poros.prepare(model, **settings)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Poros prepared model"
    return dict(line.split(maxsplit=1) for line in lines)


def test_the_card_says_what_the_model_is_and_what_is_claimed(folder, capsys):
    card = card_of(live_model(folder), capsys)
    assert list(card) == [
        "model", "model_type", "architecture", "adapter", "precision", "stack", "block_size",
        "guarantee",
    ]  # fmt: skip
    assert card["model"] == str(folder)
    assert (card["model_type"], card["precision"], card["block_size"]) == ("llama", "NF4", "1")
    assert card["architecture"] == "certified"
    certified = card["stack"] == "certified"
    assert card["guarantee"].startswith("official bitwise path" if certified else "experimental")


@pytest.mark.parametrize("extra", ["dora", "rslora"])
def test_an_adapter_that_no_artifact_has_is_experimental(folder, capsys, extra):
    card = card_of(live_model(folder, **{f"use_{extra}": True}), capsys)
    assert card["adapter"] == f"lora+{extra} (experimental)"
    assert card["guarantee"].startswith("experimental (NF4, deterministic)")


def test_settings_and_16_bit_bases_are_said(folder, capsys):
    model = open_stock(folder).requires_grad_(False)
    card = card_of(model, capsys, block_size=2)
    assert (card["precision"], card["adapter"], card["block_size"]) == ("bf16", "none", "2")


def test_without_the_dropout_s_repetition_nothing_is_claimed(folder, capsys):
    card = card_of(live_model(folder), capsys, preserve_rng_state=False)
    assert card["guarantee"].startswith("none")


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")
def test_checkpointing_that_was_taken_off_is_told(folder, capsys):
    poros.prepare(live_model(folder, kbit=True))
    assert "gradient checkpointing is off in the streamed layers" in capsys.readouterr().out
