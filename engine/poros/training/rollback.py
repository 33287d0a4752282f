"""An optimizer's step of some weights that is made as a whole or not at all.

Adam changes weights before it asks for the memory of its last temporaries. If the device has none,
weights, gradients and moments would be those of no step at all, so they are kept beside until the
step is done, for a few weights at a time. The CPU refuses no memory half way, so nothing is kept
there, unless a failpoint plays that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from poros import failpoints


@contextlib.contextmanager
def whole_or_not_at_all(
    optimizer: torch.optim.Optimizer, weights: Sequence[nn.Parameter], changing: Sequence[Tensor]
) -> Iterator[None]:
    """If the block is left by an exception, put back what it may have changed.

    Args:
        optimizer: Whose state of `weights` changes; state that began in the block is dropped.
        weights: Those that step.
        changing: Tensors to keep a copy of, on their device: weights, gradients, moments. A tensor
            whose bytes lie elsewhere too needs none.
    """
    if not may_run_out(weights):
        yield
        return
    state = optimizer.state
    before = {weight: dict(state[weight]) for weight in weights if weight in state}
    # On the CPU, where stock has them; a few bytes each.
    counts = {weight: entry["step"].clone() for weight, entry in before.items()}
    copies = _copies(changing)
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, copy in zip(changing, copies, strict=True):
                tensor.copy_(copy)
        for weight in weights:
            if weight in before:
                before[weight]["step"].copy_(counts[weight])
                state[weight] = before[weight]
            else:
                state.pop(weight, None)
        raise


def may_run_out(weights: Sequence[nn.Parameter]) -> bool:
    """Whether a step of these can end for want of memory and be gone on with."""
    return failpoints.any_armed() or any(weight.device.type != "cpu" for weight in weights)


@torch.no_grad()
def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies
