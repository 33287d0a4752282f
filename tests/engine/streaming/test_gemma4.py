"""Gemma 4: per-layer inputs, shared keys and values, two head sizes; and entries that lie of it."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor

from poros.errors import PorosModelError
from poros.measure.fingerprint import same_bits
from poros.streaming.attach import SideRules

if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 17):
    # The loader refuses it there (tests/engine/loading/test_families.py).
    pytest.skip("its layers share states through the KV cache", allow_module_level=True)

from tests.engine.streaming import gemma4  # what it imports is new in 5.17


def different(left: dict[str, Tensor], right: dict[str, Tensor], *, num_items: int) -> list[str]:
    assert left.keys() == right.keys()
    assert len(left) == num_items
    return [name for name in left if not same_bits(left[name], right[name])]


@pytest.mark.parametrize(("num_kv_shared_layers", "num_items"), [(0, 222), (2, 206), (3, 198)])
@pytest.mark.parametrize("autocast", [False, True])
def test_streamed_gradients_are_the_resident_ones(
    num_kv_shared_layers: int, num_items: int, autocast: bool
) -> None:
    resident = gemma4.make_model(num_kv_shared_layers=num_kv_shared_layers)
    streamed = gemma4.make_model(num_kv_shared_layers=num_kv_shared_layers)
    gemma4.stream(streamed)
    expected = gemma4.gradients(resident, autocast=autocast)
    found = gemma4.gradients(streamed, autocast=autocast)
    assert different(found, expected, num_items=num_items) == []
    assert any("per_layer_model_projection" in name for name in found)


def test_eager_attention_and_adapters_in_16_bit_too() -> None:
    settings = {"attn_implementation": "eager", "adapter_dtype": torch.bfloat16}
    resident, streamed = gemma4.make_model(**settings), gemma4.make_model(**settings)
    gemma4.stream(streamed)
    assert different(gemma4.gradients(streamed), gemma4.gradients(resident), num_items=198) == []


def test_generation_between_steps_uses_the_cache_and_changes_nothing() -> None:
    def run(*, streamed: bool) -> tuple[Tensor, dict[str, Tensor]]:
        model = gemma4.make_model()
        if streamed:
            gemma4.stream(model)
        gemma4.gradients(model, steps=1)
        model.eval()
        prompt = {"input_ids": torch.arange(12)[None], "attention_mask": torch.ones(1, 12).long()}
        answer = model.generate(**prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
        model.train()
        return answer, gemma4.gradients(model)

    (left, found), (right, expected) = run(streamed=True), run(streamed=False)
    assert left.shape == (1, 17)
    assert torch.equal(left, right)
    assert different(found, expected, num_items=198) == []


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (SideRules(shared_states=True), "layer 0 .* its argument per_layer_input, .*declare"),
        (SideRules(per_layer_input=True), "layer [0-2] .* writes '.*' into shared_kv_states, "),
    ],
)
def test_a_lying_entry_with_a_side_tensor_not_declared(lie: SideRules, said: str) -> None:
    model = gemma4.make_model()
    gemma4.stream(model, rules=lie)
    with pytest.raises(PorosModelError, match=said):
        gemma4.gradients(model)
