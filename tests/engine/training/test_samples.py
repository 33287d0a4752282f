"""Greedy answers in one batch: the same as one by one, and without a trace in the model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.streaming.attach import attach
from poros.streaming.block_manager import BlockManager
from poros.training.kv_cache import is_kv_cache
from poros.training.samples import AnswerCache, answer
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import stock_4bit, write_model

CPU = torch.device("cpu")
PROMPTS = ["Why?", "What is a lighthouse for?", "How many?"]


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        initializer_range=0.5,
    )
    return AutoModelForCausalLM.from_config(config)


def test_a_batch_gives_the_answers_of_each_prompt_alone(model, tokenizer) -> None:
    together = answer(model, tokenizer, PROMPTS, max_new_tokens=8, device=CPU)
    alone = [
        answer(model, tokenizer, [prompt], max_new_tokens=8, device=CPU)[0] for prompt in PROMPTS
    ]
    assert together == alone
    assert len(set(together)) == len(PROMPTS)


def test_each_token_is_told_and_changes_no_answer(model, tokenizer) -> None:
    told: list[int] = []
    heard = answer(model, tokenizer, PROMPTS, max_new_tokens=8, device=CPU, progress=told.append)
    assert heard == answer(model, tokenizer, PROMPTS, max_new_tokens=8, device=CPU)
    assert told == list(range(1, len(told) + 1))
    assert 1 < len(told) <= 8


def test_without_a_chat_template_the_text_goes_on(model) -> None:
    bare = tiny_tokenizer(template=None)
    assert len(answer(model, bare, PROMPTS, max_new_tokens=2, device=CPU)) == 3


def test_no_prompts_no_work(tokenizer) -> None:
    assert answer(None, tokenizer, [], max_new_tokens=8, device=CPU) == []


def test_modes_and_random_state_stay_as_they_were(model, tokenizer) -> None:
    model.train()
    model.model.layers[0].eval()
    state = torch.get_rng_state()
    answer(model, tokenizer, PROMPTS, max_new_tokens=2, device=CPU)
    assert model.training
    assert model.model.layers[1].training
    assert not model.model.layers[0].training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_kept_answers_come_back_for_the_same_key_only() -> None:
    AnswerCache(model="a", prompts=["x"]).write(["y", "z\n"])
    assert AnswerCache(prompts=["x"], model="a").read() == ["y", "z\n"]
    assert AnswerCache(model="b", prompts=["x"]).read() is None


def test_a_damaged_file_is_no_answer(cache: Path) -> None:
    kept = AnswerCache(model="a")
    kept.write(["y"])
    next(cache.rglob("*.json")).write_text('{"answers": ')
    assert kept.read() is None


def test_a_cache_that_cannot_be_written_stops_nothing(cache: Path) -> None:
    (cache / "answers").write_text("a file in the folder's place")
    AnswerCache(model="a").write(["y"])


def test_a_streamed_model_gives_the_resident_ones_answers(tokenizer, tmp_path: Path) -> None:
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 128}
    folder = write_model(tmp_path / "model", **sizes)
    resident = answer(stock_4bit(folder), tokenizer, PROMPTS, max_new_tokens=8, device=CPU)
    base = load_base_model(SafetensorsSource(folder), device=CPU, emit=lambda event: None)
    manager = BlockManager(base.blocks, device=CPU)
    with attach(base.layers, manager, device=CPU, drop=is_kv_cache):
        streamed = answer(base.model, tokenizer, PROMPTS, max_new_tokens=8, device=CPU)
    assert streamed == resident
    assert len(set(streamed)) == len(PROMPTS)
