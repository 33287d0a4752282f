"""A model's own forward with its head on the host: stock's code, but whole logits are never made.

The model's forward is transformers'. Where labels are given, its head returns `DeferredLogits`,
which write down what the family does to its logits (a softcap, a factor), and its loss function
takes them to `exact_loss`. So no table says what a family's head computes, and one that does
something else is refused by name.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from poros.errors import PorosModelError
from poros.streaming.visitor import Visitor
from poros.training.exact_loss import MEAN, SUM, LogitOp, LossCall, exact_loss


class DeferredLogits:
    """Logits that are not made: the hidden states, and what is to be done to their product.

    Attributes:
        hidden_BTD: The last hidden states.
        ops: What the family's forward did so far.
    """

    def __init__(self, hidden_BTD: Tensor, ops: tuple[LogitOp, ...] = ()) -> None:
        """Start with the head's own output."""
        self.hidden_BTD, self.ops = hidden_BTD, ops

    def __truediv__(self, divisor: float) -> DeferredLogits:
        """Divide by a number."""
        return self._then(lambda logits: logits / divisor, divisor)

    def __mul__(self, factor: float) -> DeferredLogits:
        """Multiply by a number."""
        return self._then(lambda logits: logits * factor, factor)

    def __getitem__(self, part: object) -> NoReturn:
        """Take a part: whose labels would it have?"""
        raise _refusal("takes a part of its logits")

    def __add__(self, other: object) -> NoReturn:
        """Add something, which may be a weight that would need gradients."""
        raise _refusal("adds to its logits")

    def _then(self, op: LogitOp, number: float = 1.0) -> DeferredLogits:
        if not isinstance(number, (int, float)):
            raise _refusal(f"combines its logits with a {type(number).__name__}")
        return DeferredLogits(self.hidden_BTD, (*self.ops, op))

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> DeferredLogits:
        """Take a call of torch: only tanh is element by element and known."""
        if function is torch.tanh and len(args) == 1 and not kwargs:
            logits: DeferredLogits = args[0]
            return logits._then(torch.tanh)
        raise _refusal(f"calls {getattr(function, '__name__', function)} on its logits")

    def __getattr__(self, name: str) -> NoReturn:
        """There is nothing to look at."""
        if name.startswith("__"):  # Python and transformers ask what else it is
            raise AttributeError(name)
        raise _refusal(f"asks for {name} of its logits")


def _refusal(what: str) -> PorosModelError:
    return PorosModelError(
        f"the model {what}, which is not done row by row",
        remediation="set vram_budget: auto, which keeps the head on the device",
    )


class StreamedHead:
    """The head's part in its model's forward; `detach` gives the model its own back.

    Args:
        model: transformers' model; its `loss_function` is that of causal language models.
        head: Its output embedding, a plain linear, whose tensors the visitor brings.
        visitor: Brings them.
        num_chunk_rows: Rows of a chunk of the loss; None: by memory.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: nn.Linear,
        visitor: Visitor,
        *,
        num_chunk_rows: int | None = None,
    ) -> None:
        """Put the forwards on."""
        assert model.loss_function is ForCausalLMLoss, model.loss_function
        self.visitor = visitor
        self._model, self._head, self._num_chunk_rows = model, head, num_chunk_rows
        self._own_forward, self._own_head = model.forward, head.forward
        self._signature = inspect.signature(model.forward)
        self._deferring = False
        # An attribute of the object, which goes before the class's; generate() reads its signature.
        forward: Any = _signed_as(self._own_forward, self._forward)
        model.forward = forward
        head.forward = self._logits  # type: ignore[assignment,method-assign]
        model.loss_function = self._loss

    def detach(self) -> None:
        """Restore the model's own forwards; the head's tensors stay where they are."""
        del self._model.forward, self._head.forward, self._model._loss_function
        self.visitor.leave()

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        given = self._signature.bind_partial(*args, **kwargs).arguments
        with self._deferred(given.get("labels") is not None):
            return self._own_forward(*args, **kwargs)

    @contextlib.contextmanager
    def _deferred(self, deferring: bool) -> Iterator[None]:
        before, self._deferring = self._deferring, deferring
        try:
            yield
        finally:
            self._deferring = before

    def _logits(self, hidden_BTD: Tensor) -> Tensor | DeferredLogits:
        if self._deferring:
            return DeferredLogits(hidden_BTD)
        if torch.is_grad_enabled() and hidden_BTD.requires_grad:
            raise RuntimeError(
                "the head is on the host, so logits have no gradient: give labels, or use no_grad"
            )
        stay = self.visitor.stay()
        try:
            return self._own_head(hidden_BTD)
        finally:
            stay.end()

    def _loss(
        self,
        logits: DeferredLogits,
        labels: Tensor,
        vocab_size: int,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """`ForCausalLMLoss`, from its shift to its division."""
        assert vocab_size == self._head.out_features, (vocab_size, self._head)
        if shift_labels is None:
            labels = nn.functional.pad(labels, (0, 1), value=ignore_index)
            shift_labels = labels[..., 1:].contiguous()
        call = LossCall(
            head=self._own_head,
            visit=self.visitor.stay,
            ops=logits.ops,
            target_R=shift_labels.view(-1).to(logits.hidden_BTD.device),
            reduction=MEAN if num_items_in_batch is None else SUM,
            ignore_index=ignore_index,
            num_chunk_rows=self._num_chunk_rows,
        )
        loss = exact_loss(logits.hidden_BTD, call)
        if num_items_in_batch is None:
            return loss
        if isinstance(num_items_in_batch, Tensor):
            num_items_in_batch = num_items_in_batch.to(loss.device)
        return loss / num_items_in_batch


def _signed_as(own: Callable[..., Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    def signed(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    signed.__signature__ = inspect.signature(own)  # type: ignore[attr-defined]
    return signed
