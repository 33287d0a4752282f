"""KV caches that layers did not fill, since a layer with gradients gets none."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache

from poros.streaming.streamed_layer import StreamedLayer


class UnfilledCaches:
    """Remembers which caches were kept from which layers; used again, they are refused.

    A model whose cache stays empty gives it back like a filled one, and who goes on with it would
    get the logits of a text without its beginning.
    """

    def __init__(self) -> None:
        """None was."""
        self._kept_from: weakref.WeakKeyDictionary[Cache, set[int]] = weakref.WeakKeyDictionary()

    def noticed(self, streamed: StreamedLayer, forward: Callable[..., Any]) -> Callable[..., Any]:
        """The layer's forward, with an eye on the caches that it is given."""

        def look(*args: Any, **kwargs: Any) -> Any:
            for value in (*args, *kwargs.values()):
                if isinstance(value, Cache):
                    self._look_at(value, streamed)
            return forward(*args, **kwargs)

        return look

    def _look_at(self, cache: Cache, streamed: StreamedLayer) -> None:
        layers = self._kept_from.get(cache)
        if layers is not None and (streamed.index in layers or not torch.is_grad_enabled()):
            raise streamed.refusal(
                "is given a KV cache again that it didn't fill: with gradients on it has none",
                "call the model in torch.no_grad() or torch.inference_mode(), as generate() does",
            )
        if torch.is_grad_enabled():
            self._kept_from.setdefault(cache, set()).add(streamed.index)
