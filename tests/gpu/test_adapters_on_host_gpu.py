"""Adapters that the plan has on the host never are on the device, not even while they are made."""

import pytest
import torch

from poros.loading.base_model import load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.measure.fingerprint import same_bits
from poros.training.lora import attach_lora, trainable_params
from tests.engine.loading.tiny_models import write_model

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)


def test_adapters_made_on_the_host_take_no_device_memory_and_have_the_same_values(tmp_path):
    folder = write_model(tmp_path, num_hidden_layers=2)
    found = {}
    for on_host in (False, True):
        base = load_base_model(
            SafetensorsSource(folder), device=CUDA, cache=None, emit=lambda _: None
        )
        place_ends(base, CUDA)
        before = torch.cuda.memory_allocated(CUDA)
        torch.cuda.reset_peak_memory_stats(CUDA)
        found[on_host] = trainable_params(attach_lora(base, seed=3, on_host=on_host))
        taken = torch.cuda.max_memory_allocated(CUDA) - before
        assert (taken == 0) == on_host
        assert {p.device.type for _, p in found[on_host]} == {"cpu" if on_host else "cuda"}
    pairs = list(zip(found[False], found[True], strict=True))
    assert len(pairs) == 28
    assert all(n == m and same_bits(a.cpu(), b) for (n, a), (m, b) in pairs)
