"""Which configs are mixtures of experts."""

import pytest

from poros.experts import is_mixture, is_mixture_type


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mixtral"},
        {"model_type": "qwen3_5_moe"},
        {"model_type": "some_new_moe"},
        {"model_type": "afmoe", "num_experts": 64},
        {"model_type": "new", "n_routed_experts": 2},
        {"model_type": "gemma4", "text_config": {"enable_moe_block": True}},
        {"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}},
        {"model_type": "granitemoehybrid", "num_local_experts": 8},
    ],
)
def test_experts_are_found_by_name_or_by_their_number(config):
    assert is_mixture(config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "llama"},
        {"model_type": None, "num_experts": "many"},
        {"model_type": "gemma4_text", "enable_moe_block": False, "num_experts": None},
        {"model_type": "doge", "is_moe": False, "num_experts": 16384},
        {"model_type": "granitemoehybrid", "num_local_experts": 0},
        {"model_type": "hunyuan_v1_dense", "num_experts": 1},
    ],
)
def test_a_dense_model_is_not_taken_for_one(config):
    assert not is_mixture(config)


def test_a_name_alone_says_it_only_where_all_models_of_the_type_are_mixtures():
    assert is_mixture_type("qwen3_moe")
    assert not is_mixture_type("granitemoehybrid")
    assert not is_mixture_type("gemma4_text")
