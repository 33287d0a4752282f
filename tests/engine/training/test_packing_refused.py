"""Packing and attention that a family can't have, refused when a run reads its model."""

import json

import pytest
import torch

from poros.config import PorosConfig
from poros.errors import PorosConfigError
from poros.measure.family_models import tiny_models, write_model
from poros.training.inputs import read_inputs


def asked(folder, **settings):
    data = folder / "data.jsonl"
    data.write_text(json.dumps({"text": "a b c"}) + "\n")
    _, text = write_model(tiny_models(settings.pop("family"))[0], folder)
    return PorosConfig(
        model_name_or_path=str(text), dataset=str(data), max_seq_length=16, **settings
    )


def refusal(config):
    with pytest.raises(PorosConfigError) as refused:
        read_inputs(config, torch.device("cpu"), lambda _: None)
    return str(refused.value)


def test_packing_is_refused_where_a_state_is_carried_along_the_row(tmp_path):
    line = refusal(asked(tmp_path, family="qwen3_5", packing=True))
    assert "qwen3_5_text" in line
    assert "carries a state" in line
    assert line.endswith("-> set packing: false")


def test_attention_that_a_family_has_not_is_refused_with_the_one_it_has(tmp_path):
    line = refusal(asked(tmp_path, family="gemma2"))
    assert line.endswith("-> set attn_implementation: eager")
