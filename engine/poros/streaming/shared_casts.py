"""Autocast's casts of adapters, as operations that several calls of layers share.

A resident model under autocast casts a weight once until autocast is left, and the gradients of
all calls in between are added in the lower type, at the cast. A recompute casts again, in a graph
of its own. So a layer's function takes, beside each float32 adapter, the result of an operation
that stands for that cast: gradients arrive there in the lower type, and go on as float32.

[Note: nothing is cast here]
Autograd looks at an input's type and shape alone, so what stands for a cast is one zero, expanded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _Casts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        zero = torch.zeros((), dtype=dtype, device=weights[0].device)
        return tuple(zero.expand(weight.shape) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, *(None if grad is None else grad.to(torch.float32) for grad in grads)


class SharedCasts:
    """The casts since autocast was last entered, in each thread its own.

    Args:
        device: Where autocast is on.
    """

    def __init__(self, device: torch.device) -> None:
        """Nothing is cast yet."""
        self._device = device
        self._probe = nn.Parameter(torch.zeros(1, 1, device=device))
        self._own = threading.local()

    def dtype(self) -> torch.dtype | None:
        """What weights are cast to and kept as; None: they aren't."""
        kind = self._device.type
        if not (torch.is_autocast_enabled(kind) and torch.is_autocast_cache_enabled()):
            return None
        return torch.get_autocast_dtype(kind)

    def of(self, weights: Sequence[nn.Parameter]) -> list[Tensor | None]:
        """What stands for each weight's cast; None for one that autocast leaves alone."""
        dtype = self.dtype()
        if dtype is None:
            return [None] * len(weights)
        known = self._since_entered()
        new = [w for w in weights if w.dtype == torch.float32 and w.is_leaf and w not in known]
        if new:
            made = _Casts.apply(dtype, *new)  # type: ignore[no-untyped-call]  # torch's
            known.update(zip(new, made, strict=True))
        return [known.get(weight) for weight in weights]

    def _since_entered(self) -> dict[nn.Parameter, Tensor]:
        # Autocast keeps the probe's cast as long as it keeps any, so another one means a new start.
        with torch.enable_grad():
            product = torch.mm(self._probe, self._probe)
        assert product.grad_fn is not None
        cast = product.grad_fn.next_functions[0][0]
        if getattr(self._own, "cast", None) is not cast:
            self._own.cast, self._own.known = cast, {}
        known: dict[nn.Parameter, Tensor] = self._own.known
        return known
