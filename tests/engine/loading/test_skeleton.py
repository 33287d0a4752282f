from __future__ import annotations

from pathlib import Path

import bitsandbytes as bnb
import pytest
import torch

from poros.errors import PorosModelError
from poros.loading.skeleton import build_skeleton, checkpoint_tensors
from tests.engine.loading.tiny_models import stock_4bit, tiny_config, write_model


@pytest.mark.parametrize("tied", [True, False])
def test_the_linears_that_stock_quantises_are_quantised_and_no_other(
    tied: bool, tmp_path: Path
) -> None:
    folder = write_model(tmp_path, tie_word_embeddings=tied)
    config = tiny_config(tie_word_embeddings=tied)
    ours = build_skeleton(config, quantization="nf4", dtype=torch.bfloat16).model
    kinds = {name: type(module) for name, module in ours.named_modules()}
    assert kinds == {name: type(module) for name, module in stock_4bit(folder).named_modules()}
    assert kinds["lm_head"] is torch.nn.Linear
    assert sum(kind is bnb.nn.Linear4bit for kind in kinds.values()) == 21


def test_nothing_but_computed_buffers_takes_memory() -> None:
    skeleton = build_skeleton(tiny_config(), quantization="nf4", dtype=torch.bfloat16)
    assert {p.device.type for p in skeleton.model.parameters()} == {"meta"}
    assert {b.device.type for b in skeleton.model.buffers()} == {"cpu"}


def test_a_checkpoint_has_no_tied_copies() -> None:
    tied = build_skeleton(
        tiny_config(tie_word_embeddings=True), quantization="bf16", dtype=torch.bfloat16
    )
    assert tied.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in checkpoint_tensors(tied.model)


def test_building_draws_no_random_numbers_and_keeps_the_default_type() -> None:
    config = tiny_config()
    before = torch.get_rng_state()
    build_skeleton(config, quantization="nf4", dtype=torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


def test_a_config_that_transformers_refuses_is_one_line() -> None:
    config = tiny_config() | {"rope_parameters": {"rope_type": "none such"}}
    with pytest.raises(PorosModelError, match="LlamaForCausalLM can't be built") as caught:
        build_skeleton(config, quantization="nf4", dtype=torch.bfloat16)
    assert "\n" not in str(caught.value)
