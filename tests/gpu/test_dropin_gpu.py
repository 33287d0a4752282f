"""Scripts with and without `poros.prepare` at the shape of a 7B model: the same bytes."""

from __future__ import annotations

import functools

import pytest
import torch
from peft import prepare_model_for_kbit_training

import poros
from poros.dropin.prepare import find_prepared
from poros.loading.seeded_source import SeededSource, write_checkpoint
from poros.measure.fingerprint import same_bits
from poros.measure.shapes import shape_config
from poros.training.determinism import prepare_cuda
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.dropin.live import live_model, plain_loop
from tests.engine.dropin.scripts import Rows, by_sft, by_trainer, with_adapter
from tests.engine.dropin.scripts import plain_loop as ten_steps
from tests.engine.loading.tiny_models import stock_4bit, write_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
]

prepare_cuda()  # before CUDA starts

CUDA = torch.device("cuda", 0)
SHAPE, NUM_LAYERS, NUM_TOKENS = "qwen2.5-7b", 8, 128


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "kbit"])
def base(request, tmp_path_factory):
    """Random weights in NF4, on the device."""
    poros.enforce_determinism()
    folder = tmp_path_factory.mktemp("shape")
    source = SeededSource(shape_config(SHAPE, num_layers=NUM_LAYERS), seed=0)
    write_checkpoint(source, folder, device=CUDA)
    model = stock_4bit(folder, CUDA)
    return prepare_model_for_kbit_training(model) if request.param else model


def differing(found, expected):
    assert found.keys() == expected.keys()
    assert len(found) == 3 * 2 * 7 * NUM_LAYERS
    return [name for name in expected if not same_bits(found[name], expected[name])]


def with_and_without(base, script, tmp_path, *, dtype=torch.float32):
    """What a script trains on the stock model, and with the one line."""
    found = {}
    for how in ("stock", "prepared"):
        model = with_adapter(base, dtype)
        if how == "prepared":
            poros.prepare(model)
        found[how] = script(model, Rows(NUM_TOKENS), tmp_path / how)
        if how == "prepared":
            poros.unprepare(model)
        model.unload()
    return found["prepared"], found["stock"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_plain_loop_trains_the_same_bytes(base, tmp_path, dtype):
    assert differing(*with_and_without(base, ten_steps, tmp_path, dtype=dtype)) == []


@pytest.mark.parametrize("bf16", [True, False], ids=["autocast", "none"])
def test_a_trainer_trains_the_same_bytes(base, tmp_path, bf16):
    script = functools.partial(by_trainer, bf16=bf16)
    assert differing(*with_and_without(base, script, tmp_path)) == []


def test_a_trainer_resumes_to_the_same_bytes(base, tmp_path):
    model = with_adapter(base)
    expected = by_trainer(model, Rows(NUM_TOKENS), tmp_path, bf16=True)
    model.unload()
    model = poros.prepare(with_adapter(base))
    found = by_trainer(
        model, Rows(NUM_TOKENS), tmp_path, bf16=True, resume=tmp_path / "checkpoint-5"
    )
    poros.unprepare(model).unload()
    assert differing(found, expected) == []


def test_trl_trains_the_same_bytes(base, tmp_path):
    pytest.importorskip("trl", reason="TRL is not installed")
    script = functools.partial(by_sft, tokenizer=tiny_tokenizer())
    assert differing(*with_and_without(base, script, tmp_path)) == []


def test_the_layers_leave_the_device_and_come_back_to_the_same_bytes(base):
    model = with_adapter(base)
    before = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    # Not all on the card: bitsandbytes packs its own description of a weight on the host.
    places = {name: tensor.device for name, tensor in model.state_dict().items()}
    resident_bytes = torch.cuda.memory_allocated()
    poros.patch_hf_model(model)
    blocks = find_prepared(model).blocks
    num_bytes, slot_bytes = sum(b.num_bytes for b in blocks), blocks[0].num_bytes
    assert len(blocks) == NUM_LAYERS
    assert all(block.registered for block in blocks)
    # Each tensor has a little room of its own around it, which the allocator rounds.
    left_bytes = resident_bytes - torch.cuda.memory_allocated()
    assert abs(left_bytes - (num_bytes - 2 * slot_bytes)) < 0.02 * num_bytes
    whole = model.state_dict()
    assert [n for n in before if not same_bits(whole[n].cpu(), before[n])] == []
    poros.unprepare(model)
    after = model.state_dict()
    assert {name: tensor.device for name, tensor in after.items()} == places
    assert all(p.device == CUDA for p in model.parameters())
    assert [n for n in before if not same_bits(after[n].cpu(), before[n])] == []
    model.unload()


@pytest.mark.parametrize("precision", ["nf4", "bf16", "fp16"])
def test_a_model_in_the_host_s_memory_computes_on_the_device_and_goes_home(tmp_path, precision):
    poros.enforce_determinism()
    folder = write_model(tmp_path / "tiny")
    expected = plain_loop(live_model(folder, precision=precision).to(CUDA), device=CUDA)
    model = live_model(folder, precision=precision)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    found = plain_loop(poros.patch_hf_model(model), device=CUDA)
    assert {p.device for p in model.parameters()} == {CUDA}
    assert found.keys() == expected.keys()
    assert [n for n in found if not same_bits(found[n].cpu(), expected[n].cpu())] == []
    poros.unprepare(model)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    after = {n: tensor for n, tensor in model.state_dict().items() if "lora_" not in n}
    assert {tensor.device.type for tensor in after.values()} == {"cpu"}
    assert [n for n in after if not same_bits(after[n], before[n])] == []


def test_a_plain_workspace_made_before_is_refused_in_one_line(monkeypatch, tmp_path):
    folder = write_model(tmp_path / "tiny")
    torch.zeros(1, device=CUDA)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    model = live_model(folder)
    with pytest.raises(poros.PorosConfigError, match="CUDA was started without"):
        poros.prepare(model)
    assert {p.device.type for p in model.parameters()} == {"cpu"}
