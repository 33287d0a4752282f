"""Which values handed to a layer are KV caches: told by type, since their names change."""

from __future__ import annotations

from transformers.cache_utils import Cache


def is_kv_cache(value: object) -> bool:
    """Whether a layer would write keys and values into it, and twice with a recompute."""
    return isinstance(value, Cache)
