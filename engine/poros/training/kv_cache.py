"""Which values handed to a layer are KV caches: told by type, since their names change."""

from __future__ import annotations

from transformers.cache_utils import Cache


def is_kv_cache(value: object) -> bool:
    """Whether a layer would write keys and values into it, and twice with a recompute.

    Raises:
        ValueError: It holds a prefix, which a layer without it would not see.
    """
    if not isinstance(value, Cache):
        return False
    if value.get_seq_length():
        raise ValueError("a KV cache with a prefix can't be used while gradients are on")
    return True
