"""Ten steps of each script on the demo's model. TRL's needs `pip install trl`."""

import functools

import pytest
import torch
from peft import prepare_model_for_kbit_training
from transformers import AutoTokenizer

import poros
from poros.demo.model import demo_model_folder
from poros.measure.fingerprint import same_bits
from tests.engine.dropin.scripts import SAVED, Rows, by_sft, by_trainer, plain_loop, with_adapter
from tests.engine.loading.tiny_models import stock_4bit

pytestmark = [
    pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore"),
]  # fmt: skip

NUM_TOKENS = 24
NUM_TENSORS = 3 * 2 * 7 * 30
"""A weight and its two moments, of each of two matrices on 7 linears in 30 layers."""


@pytest.fixture(scope="module")
def folder():
    return demo_model_folder(lambda _: None)


def by_trl(folder):
    pytest.importorskip("trl", reason="TRL is not installed")
    return functools.partial(by_sft, tokenizer=AutoTokenizer.from_pretrained(folder))


SCRIPTS = {
    "plain loop": lambda _: plain_loop,
    "Trainer": lambda _: functools.partial(by_trainer, bf16=False),
    "Trainer, bf16": lambda _: functools.partial(by_trainer, bf16=True),
    "SFTTrainer": by_trl,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kbit", [False, True], ids=["plain", "kbit"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_trains_the_same_bytes_with_the_line(folder, tmp_path, script, kbit, dtype):
    run = script(folder)
    poros.enforce_determinism("cpu")

    def trained(name, prepare):
        base = stock_4bit(folder)
        base = prepare_model_for_kbit_training(base) if kbit else base
        return run(prepare(with_adapter(base, dtype)), Rows(NUM_TOKENS), tmp_path / name)

    expected = trained("stock", lambda model: model)
    found = trained("prepared", poros.prepare)
    assert found.keys() == expected.keys()
    assert len(found) == NUM_TENSORS
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []


@pytest.mark.parametrize("script", list(SCRIPTS)[1:])
def test_a_script_resumes_to_the_same_bytes_with_the_line(folder, tmp_path, script):
    run = SCRIPTS[script](folder)
    poros.enforce_determinism("cpu")
    rows = Rows(NUM_TOKENS)
    run(with_adapter(stock_4bit(folder)), rows, tmp_path)
    # Against a resident resume, not the whole run: SFTTrainer trains its adapters in bfloat16, and
    # PEFT loads them as float32.
    saved = tmp_path / f"checkpoint-{SAVED}"
    expected = run(with_adapter(stock_4bit(folder)), rows, tmp_path / "stock", resume=saved)
    model = poros.prepare(with_adapter(stock_4bit(folder)))
    found = run(model, rows, tmp_path / "prepared", resume=saved)
    assert found.keys() == expected.keys()
    assert len(found) == NUM_TENSORS
    assert [name for name in expected if not same_bits(found[name], expected[name])] == []
