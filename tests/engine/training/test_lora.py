"""Adapters are PEFT's own, on PEFT's own 4-bit layers, in PEFT's own files."""

from unittest import mock

import pytest
import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.lora.bnb import Linear4bit as LoraLinear4bit
from safetensors.torch import load_file
from torch import nn

from poros.errors import PorosConfigError, PorosModelError
from poros.measure.fingerprint import same_bits
from poros.streaming.block import Block
from poros.training.lora import attach_lora, save_adapter, trainable_params
from tests.engine.loading.tiny_models import RUNNABLE, VARIANTS, write_model
from tests.engine.training.tiny_run import streamed, tiny_base


def test_all_linears_get_pefts_four_bit_adapter_of_rank_16(tiny_folder):
    model = attach_lora(tiny_base(tiny_folder))
    kinds = [type(module) for module in model.modules() if isinstance(module, LoraLayer)]
    assert kinds == [LoraLinear4bit] * 14
    params = trainable_params(model)
    assert len(params) == 28
    assert {p.dtype for _, p in params} == {torch.float32}
    assert {min(p.shape) for _, p in params} == {16}


@pytest.mark.parametrize("variant", [v for v in RUNNABLE if ", tied" not in v])
def test_by_default_every_linear_of_every_familys_layers_gets_one(variant, tmp_path):
    base = tiny_base(write_model(tmp_path, **VARIANTS[variant]))
    linears = [m for layer in base.layers for m in layer.modules() if isinstance(m, nn.Linear)]
    model = attach_lora(base)
    kinds = [type(module) for module in model.modules() if isinstance(module, LoraLayer)]
    assert kinds == [LoraLinear4bit] * len(linears)
    assert len(linears) >= 3 * 4


def test_the_seed_alone_decides_the_first_weights(tiny_folder):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one, two, other = (attach_lora(tiny_base(tiny_folder), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(trainable_params(one), trainable_params(two), strict=True))
    assert all(same_bits(a, b) for (_, a), (_, b) in pairs)
    assert not same_bits(trainable_params(one)[0][1], trainable_params(other)[0][1])


def test_targets_that_match_nothing_are_named(tiny_folder):
    with pytest.raises(PorosConfigError, match=r"qproj.*down_proj"):
        attach_lora(tiny_base(tiny_folder), targets=["q_proj", "qproj"])


def test_given_targets_are_taken(tiny_folder):
    model = attach_lora(tiny_base(tiny_folder), targets=["q_proj", "v_proj"])
    assert len(trainable_params(model)) == 8


def test_a_saved_adapter_comes_back_bit_for_bit(tiny_folder, tmp_path):
    model, _ = streamed(tiny_folder)
    with torch.no_grad():
        for _, parameter in trainable_params(model):
            parameter.normal_()
    save_adapter(model, tmp_path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        path.name for path in tmp_path.iterdir()
    }
    assert len(load_file(tmp_path / "adapter_model.safetensors")) == 28
    again, _ = streamed(tiny_folder, adapter_path=tmp_path)
    pairs = list(zip(trainable_params(model), trainable_params(again), strict=True))
    assert len(pairs) == 28
    assert all(n == m and same_bits(a, b) for (n, a), (m, b) in pairs)


def test_a_pickled_adapter_is_refused(tiny_folder, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_bytes(b"evil")
    with pytest.raises(PorosModelError, match=r"adapter_model\.safetensors"):
        attach_lora(tiny_base(tiny_folder), adapter_path=tmp_path)


def test_adapters_made_on_the_host_have_the_same_first_values(tiny_folder):
    resident, base = attach_lora(tiny_base(tiny_folder), seed=1), tiny_base(tiny_folder)
    with SeenDevices() as seen:
        hosted = attach_lora(base, seed=1, on_host=True)
    pairs = list(zip(trainable_params(resident), trainable_params(hosted), strict=True))
    assert len(pairs) == 28
    assert all(n == m and same_bits(a, b) for (n, a), (m, b) in pairs)
    # The layers' weights are placeholders where they will be computed before and after.
    assert all(block.tensors is block._away for block in base.blocks)
    assert seen.pointed == [block.index for block in base.blocks]


class SeenDevices:
    """Which blocks were shown on the host while adapters were made."""

    def __enter__(self):
        self.pointed = []
        own = Block.point_at_host
        self.patch = mock.patch.object(
            Block, "point_at_host", lambda block: (self.pointed.append(block.index), own(block))
        )
        self.patch.start()
        return self

    def __exit__(self, *_):
        self.patch.stop()


def test_the_files_are_those_of_pefts_own_save(tiny_folder, tmp_path):
    model = attach_lora(tiny_base(tiny_folder), dropout=0.25, alpha=7)
    save_adapter(model, tmp_path / "ours")
    weights = dict(trainable_params(model))
    model.save_pretrained(str(tmp_path / "theirs"), state_dict=weights, save_embedding_layers=False)
    names = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert names == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == names
    for name in names:
        ours, theirs = (tmp_path / which / name for which in ("ours", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes(), name
    assert model.peft_config["default"].inference_mode is False
