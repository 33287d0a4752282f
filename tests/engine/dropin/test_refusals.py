import re

import pytest
import torch
from bitsandbytes.nn.modules import Linear8bitLt
from torch import nn

import poros
from poros import arch_registry
from poros.dropin import prepare as module
from poros.dropin.prepare import find_prepared
from poros.errors import PorosArchNotValidatedError, PorosConfigError, PorosModelError
from poros.measure.fingerprint import same_bits
from poros.streaming.block import Block
from tests.engine.dropin.live import live_model
from tests.engine.loading.tiny_models import open_stock, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    """One that is refused, and so stays as it is."""
    return live_model(folder, precision="bf16")


def refused_with(model, words, error=PorosModelError, **settings):
    with pytest.raises(error, match=re.escape(words)):
        poros.prepare(model, **settings)
    assert not isinstance(model, nn.Module) or find_prepared(model) is None


def test_trained_base_weights_are_refused(model):
    weight = model.get_base_model().model.layers[1].self_attn.q_proj.base_layer.weight
    weight.requires_grad_(True)
    refused_with(model, "1 base weights in model.layers are trained")
    weight.requires_grad_(False)


def test_what_is_no_model_of_transformers_is_refused(model):
    refused_with("qwen", "a str is no model")
    refused_with(nn.Linear(1, 1), "no model of transformers in this Linear")
    refused_with(nn.DataParallel(model), "poros.prepare(model.module)")


def test_layers_of_another_quantisation_are_refused(folder):
    model = open_stock(folder).requires_grad_(False)
    model.model.layers[2].mlp.up_proj = Linear8bitLt(64, 160, bias=False).requires_grad_(False)
    refused_with(model, "its linears are int8")


def test_weights_that_are_not_there_or_spread_are_refused(folder):
    model = open_stock(folder).requires_grad_(False)
    model.model.layers[2].mlp.up_proj.to("meta")
    refused_with(model, "weights are on the meta device")


def test_several_processes_are_refused(model, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused_with(model, "world size is 2", PorosConfigError)


def test_a_setting_that_means_nothing_is_refused(model):
    for size in (0, -1, 1.5, True):
        refused_with(model, f"block_size is {size!r}", PorosConfigError, block_size=size)
    refused_with(model, "arch_check is 'no'", PorosConfigError, arch_check="no")


@pytest.mark.long  # the compiler's import alone takes seconds
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_a_compiled_model_is_refused_before_and_after(folder):
    model = live_model(folder, precision="bf16")
    refused_with(torch.compile(model, backend="eager"), "the model is compiled")
    poros.patch_hf_model(model)
    with pytest.raises(PorosModelError, match="the model is compiled"):
        torch.compile(model, backend="eager")(input_ids=torch.arange(1, 9)[None])
    poros.unprepare(model)
    model.compile(backend="eager")
    refused_with(model, "model.compile()")


def test_what_the_compiler_leaves_on_a_model_is_refused(folder, monkeypatch):
    model = live_model(folder, precision="bf16")
    inner = model.get_base_model().model.layers[1].mlp
    inner._compiled_call_impl = inner.forward
    refused_with(model, "model.compile()")
    del inner._compiled_call_impl
    poros.patch_hf_model(model)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(PorosModelError, match="the model is compiled"):
        model(input_ids=torch.arange(1, 9)[None])


def test_an_unknown_family_is_refused_or_runs_without_a_claim(folder, monkeypatch, capsys):
    model = live_model(folder, precision="bf16")
    monkeypatch.delitem(arch_registry._OWN, "llama")
    refused_with(model, "no architecture entry", PorosArchNotValidatedError)
    with pytest.warns(UserWarning, match="nothing is claimed"):
        poros.prepare(model, arch_check="warn")
    assert "none: the architecture is not validated" in capsys.readouterr().out
    poros.unprepare(model)
    poros.prepare(model, arch_check="off")
    assert "architecture  unvalidated" in capsys.readouterr().out


def test_a_registered_family_runs_as_user_asserted(folder, monkeypatch, capsys):
    model = live_model(folder, precision="bf16")
    monkeypatch.delitem(arch_registry._OWN, "llama")
    monkeypatch.setitem(arch_registry._registered, "llama", None)
    poros.register_architecture("llama")
    poros.prepare(model)
    card = capsys.readouterr().out
    assert "architecture  user_asserted" in card
    assert "guarantee  experimental" in card


def fails_at(call, method):
    """The method, interrupted at its call of that number."""
    calls = []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return method(*args, **kwargs)

    return failing


STAGES = {
    "a layer is laid out": (2, Block, "lay_out"),
    "a forward is put on": (2, module, "not_compiled"),
    "a method is replaced": (9, module.Answers, "_set"),
    "the card is made": (1, module, "make_card"),
}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing", "ignore:torch.utils.checkpoint")
@pytest.mark.parametrize(("call", "owner", "name"), STAGES.values(), ids=STAGES)
def test_a_prepare_that_fails_half_way_gives_the_model_back(folder, monkeypatch, call, owner, name):
    model = live_model(folder, kbit=True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = [set(vars(part)) for part in model.modules()]
    flags = [getattr(part, "gradient_checkpointing", None) for part in model.modules()]
    assert True in flags
    torch.use_deterministic_algorithms(False)
    monkeypatch.setattr(owner, name, fails_at(call, getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt):
        poros.prepare(model)
    after = model.state_dict()
    assert [name for name in before if not same_bits(after[name], before[name])] == []
    assert [set(vars(part)) for part in model.modules()] == attributes
    assert [getattr(part, "gradient_checkpointing", None) for part in model.modules()] == flags
    assert not torch.are_deterministic_algorithms_enabled()
    assert find_prepared(model) is None
