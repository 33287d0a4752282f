import pytest
import torch

import poros
from poros.measure.fingerprint import same_bits
from tests.engine.dropin.live import live_model, plain_loop
from tests.engine.loading.tiny_models import RUNNABLE, VARIANTS, write_model

_UNLIKE = ("qwen2, untied", "qwen3_5_text, untied", "gemma4_text, E-form")
KINDS_OF_LAYERS = [name for name in _UNLIKE if name in RUNNABLE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


def same(found, expected):
    assert found.keys() == expected.keys()
    return [name for name in expected if not same_bits(found[name], expected[name])] == []


# Each two of them meet.
@pytest.mark.parametrize(
    ("precision", "kbit", "dtype"),
    [
        ("nf4", False, torch.float32), ("nf4", True, torch.bfloat16),
        ("bf16", True, torch.float32), ("bf16", False, torch.bfloat16),
        ("fp16", False, torch.float32), ("fp16", True, torch.bfloat16),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint", "ignore:.*gradient_checkpointing")
def test_a_prepared_model_trains_to_the_same_bits(folder, precision, kbit, dtype):
    made = {"precision": precision, "kbit": kbit, "adapter_dtype": dtype}
    expected = plain_loop(live_model(folder, **made))
    prepared = poros.prepare(live_model(folder, **made))
    assert same(plain_loop(prepared), expected)


KINDS = {
    "dora": {"use_dora": True},
    "rslora": {"use_rslora": True},
    "head saved": {"modules_to_save": ["lm_head"]},
    "norms saved": {"modules_to_save": ["input_layernorm"]},
    "on the embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "on the head": {"target_modules": ["q_proj", "lm_head"]},
    "some token rows": {"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
}


@pytest.mark.parametrize("lora", KINDS.values(), ids=KINDS)
@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings", "ignore:.*tied")
def test_other_adapters_train_to_the_same_bits(folder, lora):
    expected = plain_loop(live_model(folder, **lora))
    assert same(plain_loop(poros.prepare(live_model(folder, **lora))), expected)


def test_layers_may_travel_together(folder):
    expected = plain_loop(live_model(folder))
    prepared = poros.prepare(live_model(folder), block_size=2)
    assert same(plain_loop(prepared), expected)


@pytest.mark.parametrize("kind", KINDS_OF_LAYERS)
def test_unlike_layers_train_to_the_same_bits(tmp_path, kind):
    folder = write_model(tmp_path, **VARIANTS[kind])
    expected = plain_loop(live_model(folder, target_modules=r".*layers.*(q|down)_proj"))
    prepared = poros.prepare(live_model(folder, target_modules=r".*layers.*(q|down)_proj"))
    assert same(plain_loop(prepared), expected)
