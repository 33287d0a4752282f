"""Gradient checkpointing and streaming both compute a layer again: only one of them may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

_FLAG = "gradient_checkpointing"
_SETTER = "_set_gradient_checkpointing"


class TakenOff:
    """Gradient checkpointing, off the layers for as long as they are streamed.

    The model around them keeps its own flag, so it answers as before. Turned on or off meanwhile
    (as Trainer does when training starts), it is noted and takes effect with `put_back`.

    Args:
        base: The model.
        layers: Its streamed layers.

    Attributes:
        was_on: It was on when it was taken off.
    """

    def __init__(self, base: PreTrainedModel, layers: Sequence[nn.Module]) -> None:
        """Take it off."""
        self._base = base
        self._parts = [m for layer in layers for m in layer.modules() if hasattr(m, _FLAG)]
        self._on: list[nn.Module] = []
        self._own = base.__dict__.get(_SETTER)
        setter = getattr(base, _SETTER)

        def set_meanwhile(*args: Any, **kwargs: Any) -> None:
            setter(*args, **kwargs)
            self._take_off()

        self._take_off()
        self.was_on = bool(self._on)
        base.__dict__[_SETTER] = set_meanwhile

    def put_back(self) -> None:
        """Give the layers the flag that they would have by now."""
        self._base.__dict__.pop(_SETTER)
        if self._own is not None:
            self._base.__dict__[_SETTER] = self._own
        for part in self._on:
            setattr(part, _FLAG, True)

    def _take_off(self) -> None:
        self._on = [part for part in self._parts if getattr(part, _FLAG)]
        for part in self._on:
            setattr(part, _FLAG, False)
