"""Each argument of `patch_hf_model`, which are those of `prepare`, by what it does."""

import pytest
import torch

import poros
from poros.dropin.prepare import find_prepared
from poros.measure.fingerprint import same_bits
from tests.engine.dropin.live import live_model, plain_loop
from tests.engine.loading.tiny_models import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def resident(folder):
    return plain_loop(live_model(folder, precision="bf16"), steps=1)


def trained(folder, **settings):
    model = poros.patch_hf_model(live_model(folder, precision="bf16"), **settings)
    return plain_loop(model, steps=1), find_prepared(model)


def differing(found, expected):
    assert found.keys() == expected.keys()
    return [name for name in expected if not same_bits(found[name], expected[name])]


@pytest.mark.parametrize(("size", "num_blocks"), [(None, 3), (1, 3), (2, 2), (9, 1)])
def test_block_size_is_how_many_layers_travel_together(folder, resident, size, num_blocks):
    found, prepared = trained(folder, block_size=size)
    assert len(prepared.blocks) == num_blocks
    assert differing(found, resident) == []


def test_enable_prefetch_has_the_next_block_copied_while_one_computes(folder, resident):
    def copies_while_the_first_computes(prefetch):
        model = live_model(folder, precision="bf16")
        manager = find_prepared(poros.patch_hf_model(model, enable_prefetch=prefetch)).manager
        copies = []
        inner = model.get_base_model().model.layers[0].mlp
        inner.register_forward_hook(lambda *_: copies.append(manager.num_copies))
        with torch.no_grad():
            model(input_ids=torch.arange(1, 9)[None])
        return copies[0]

    assert copies_while_the_first_computes(True) == 2
    assert copies_while_the_first_computes(False) == 1
    assert differing(trained(folder, enable_prefetch=False)[0], resident) == []


def test_preserve_rng_state_repeats_dropout_in_the_backward(folder, resident):
    found, _ = trained(folder, preserve_rng_state=False)
    losses = [name for name in resident if name.startswith("loss")]
    assert differing({losses[0]: found[losses[0]]}, {losses[0]: resident[losses[0]]}) == []
    assert len(differing(found, resident)) > 100


def test_managed_parameter_filter_is_asked_by_name_and_keeps_what_it_says_no_to(folder, resident):
    asked = {}

    def manages(name, parameter):
        asked[name] = parameter.requires_grad
        return "down_proj" not in name

    found, prepared = trained(folder, managed_parameter_filter=manages)
    assert len(asked) == 3 * 9  # seven linears and two norms a layer
    assert not any(asked.values())
    assert all("down_proj" not in p.name for block in prepared.blocks for p in block.places)
    assert differing(found, resident) == []


def test_prepare_takes_the_same_and_refuses_what_is_none(folder, capsys):
    model = live_model(folder, precision="bf16")
    with pytest.raises(TypeError, match="blocksize"):
        poros.prepare(model, blocksize=2)
    assert find_prepared(model) is None
    assert poros.prepare(model, block_size=2) is model
    assert "block_size  2" in capsys.readouterr().out
