"""A layer never sees a cache while gradients are on, and a filled one is not dropped unseen."""

import pytest
import torch
from transformers import DynamicCache

from poros.training.kv_cache import is_kv_cache


def test_an_empty_cache_is_one_and_a_tensor_is_none():
    assert is_kv_cache(DynamicCache())
    assert not is_kv_cache(torch.ones(1))


def test_a_cache_with_a_prefix_is_an_error():
    cache = DynamicCache()
    cache.update(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4), 0)
    with pytest.raises(ValueError, match="prefix"):
        is_kv_cache(cache)
