"""A loop of a user's own: the resident bytes or a refusal, never other numbers."""

import gc
import re
import weakref

import peft
import pytest
import torch

import poros
from poros.errors import PorosModelError
from poros.measure.fingerprint import same_bits
from tests.engine.dropin.attacks import EQUAL, REFUSED, after, loss_of, trained
from tests.engine.dropin.live import live_model
from tests.engine.loading.tiny_models import open_stock, stock_4bit, write_model

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own, which vary


ON_NF4 = ("forwards in one autocast", "evaluation between", "breaking off", "a hook inside")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    poros.enforce_determinism("cpu")
    return write_model(tmp_path_factory.mktemp("tiny"))


def attacked(model, attack):
    model.train()
    torch.manual_seed(3)
    return attack(model)


def differing(found, expected):
    assert found.keys() == expected.keys()
    assert len(expected) > 0
    return [name for name in expected if not same_bits(found[name], expected[name])]


@pytest.mark.parametrize("name", EQUAL)
def test_it_gives_the_resident_bytes(folder, name):
    precision = "nf4" if name in ON_NF4 else "bf16"
    expected = attacked(live_model(folder, precision=precision), EQUAL[name])
    prepared = poros.patch_hf_model(live_model(folder, precision=precision))
    assert differing(attacked(prepared, EQUAL[name]), expected) == []


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(folder, name):
    attack, words = REFUSED[name]
    attacked(live_model(folder, precision="bf16"), attack)  # a resident model takes it
    prepared = poros.patch_hf_model(live_model(folder, precision="bf16"))
    with pytest.raises((PorosModelError, RuntimeError), match=re.escape(words)):
        attacked(prepared, attack)


def test_what_adds_in_another_order_is_allowed_without_a_claim(folder):
    attack, _ = REFUSED["a layer's result in the loss"]
    model = poros.patch_hf_model(live_model(folder, precision="bf16"), deterministic=False)
    found, expected = (
        attacked(model, attack),
        attacked(live_model(folder, precision="bf16"), attack),
    )
    assert found.keys() == expected.keys()
    worst = max(float((found[k] - expected[k]).norm() / expected[k].norm()) for k in expected)
    assert worst < 2e-2  # bfloat16's last places
    assert differing(found, expected) != []  # else the refusal would be for nothing


def _vera():
    return peft.VeraConfig(r=4, target_modules=["q_proj"], init_weights=False)


def _replicated():
    return peft.LoraConfig(r=4, target_modules=["q_proj"], layer_replication=[[0, 2], [1, 3]])


def _prompt():
    return peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)


ADAPTERS = {
    "matrices that layers share": (_vera, "bf16"),
    "layers twice": (_replicated, "nf4"),
    "tokens before the text": (_prompt, "bf16"),
}
NOT_ADDED_ALIKE = {
    "hra": lambda: peft.HRAConfig(r=4, target_modules=["q_proj"], init_weights=False),
    "vblora": lambda: peft.VBLoRAConfig(
        r=4, num_vectors=8, vector_length=16, topk=2, target_modules=["q_proj", "v_proj"]
    ),
}
NOT_REPEATED = {
    "prefix": lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "poly": lambda: peft.PolyConfig(r=4, n_tasks=2, n_skills=2, target_modules=["q_proj"]),
}


def adapted(folder, config, *, precision="bf16"):
    torch.manual_seed(5)
    base = stock_4bit(folder) if precision == "nf4" else open_stock(folder)
    return peft.get_peft_model(base, config())


def two_forwards(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [loss_of(model), 3 * loss_of(model, 7)]
    return after(model, *losses)


@pytest.mark.parametrize(("config", "precision"), ADAPTERS.values(), ids=ADAPTERS)
def test_other_adapters_give_the_resident_bytes(folder, config, precision):
    expected = attacked(adapted(folder, config, precision=precision), two_forwards)
    prepared = poros.patch_hf_model(adapted(folder, config, precision=precision))
    assert differing(attacked(prepared, two_forwards), expected) == []


@pytest.mark.parametrize("config", NOT_ADDED_ALIKE.values(), ids=NOT_ADDED_ALIKE)
def test_weights_that_are_used_often_are_refused_in_the_second_call(folder, config):
    prepared = poros.patch_hf_model(adapted(folder, config))
    with pytest.raises(PorosModelError, match="uses an adapter's weight more than once"):
        attacked(prepared, two_forwards)


@pytest.mark.parametrize("config", NOT_REPEATED.values(), ids=NOT_REPEATED)
def test_adapters_that_a_recompute_would_miss_are_refused_at_once(folder, config):
    with pytest.raises(PorosModelError, match="the backward computes it again without"):
        poros.patch_hf_model(adapted(folder, config))


def test_two_prepared_models_hold_the_settings_till_both_are_given_back(folder):
    torch.use_deterministic_algorithms(False)
    one = poros.patch_hf_model(live_model(folder, precision="bf16"))
    two = poros.patch_hf_model(live_model(folder, precision="bf16"))
    poros.unprepare(one)
    assert torch.are_deterministic_algorithms_enabled()
    poros.unprepare(two)
    assert not torch.are_deterministic_algorithms_enabled()
    poros.enforce_determinism("cpu")


def test_given_back_between_forward_and_backward_it_is_refused(folder):
    model = poros.patch_hf_model(live_model(folder))
    loss = loss_of(model)
    poros.unprepare(model)
    with pytest.raises(RuntimeError, match="were streamed in the forward, and are no more"):
        loss.backward()
    assert after(model, loss_of(model)).keys() == trained(model).keys()


@pytest.mark.parametrize("precision", ["nf4", "bf16"])
def test_prepared_between_forward_and_backward_it_is_refused(folder, precision):
    expected = attacked(live_model(folder, precision=precision), lambda m: after(m, loss_of(m)))
    model = live_model(folder, precision=precision)

    def prepared_between(model):
        loss = loss_of(model)
        with pytest.raises(PorosModelError, match="still waits for its backward"):
            poros.prepare(model)
        grads = after(model, loss)
        poros.patch_hf_model(model)  # a loss whose backward is done keeps nobody waiting
        return grads

    assert differing(attacked(model, prepared_between), expected) == []


def test_a_forward_that_nobody_holds_is_not_waited_for(folder):
    model = live_model(folder)
    lost = [loss_of(model)]
    lost.append(lost)
    del lost
    assert poros.patch_hf_model(model) is model


@pytest.mark.parametrize("name", ["an inner tensor in the loss", "a layer's result in the loss"])
def test_a_refused_backward_does_not_keep_the_model(folder, name):
    model = poros.patch_hf_model(live_model(folder, precision="bf16"))
    gone = weakref.ref(model.get_base_model())
    with pytest.raises(PorosModelError):
        attacked(model, REFUSED[name][0])
    del model
    gc.collect()
    assert gone() is None


def test_a_loss_does_not_keep_the_model(folder):
    model = poros.patch_hf_model(live_model(folder, precision="bf16"))
    loss = loss_of(model)
    del model
    gc.collect()
    with pytest.raises(RuntimeError, match="were streamed in the forward, and are no more"):
        loss.backward()
