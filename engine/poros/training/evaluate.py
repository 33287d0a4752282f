"""The held-out loss: no gradient, no dropout, no random number drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from poros.data.batches import Batch
from poros.training.determinism import rng_state, set_rng_state


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Means over all label tokens."""

    loss: float
    num_label_tokens: int

    @property
    def perplexity(self) -> float:
        """Exponential of the loss; infinite where a float can't hold it."""
        return math.exp(self.loss) if self.loss < 700 else math.inf


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    autocast_dtype: torch.dtype | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> EvalResult:
    """The model's loss, weighted by tokens; mode and random states are left as they were."""
    was_training, state = model.training, rng_state(device)
    model.eval()
    total, num_label_tokens = 0.0, 0
    try:
        with torch.no_grad():
            for done, batch in enumerate(batches, start=1):
                with torch.autocast(
                    device.type,
                    autocast_dtype or torch.bfloat16,
                    enabled=autocast_dtype is not None,
                ):
                    loss = model(
                        **batch.model_inputs(device),
                        labels=batch.labels_BT.to(device),
                        num_items_in_batch=batch.num_label_tokens,
                    ).loss
                total += loss.item() * batch.num_label_tokens
                num_label_tokens += batch.num_label_tokens
                progress(done)
    finally:
        model.train(was_training)
        set_rng_state(state, device)
    return EvalResult(total / num_label_tokens, num_label_tokens)
