"""A streamed layer: its own forward, its block, and what it is declared to take and give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from poros.errors import PorosModelError
from poros.streaming.adapter_uses import AdapterUses
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import Boundaries
from poros.streaming.live_checks import LiveChecks, Turn
from poros.streaming.travelling import TravellingAdapters


def _nothing() -> None:
    """Nobody but the engine touches the layers."""


@dataclass(frozen=True)
class SideRules:
    """What a family's layers are declared to take and give beside hidden states.

    Attributes:
        per_layer_input: Each layer takes a differentiable tensor of its own.
        shared_states: Layers write tensors into a mapping that later layers read.
    """

    per_layer_input: bool = False
    shared_states: bool = False


@dataclass
class StreamedLayer:
    """A layer, its own forward, and the block its weights travel in.

    Attributes:
        layer: The layer.
        forward: Its own forward.
        manager: The ring that its block travels in.
        block_index: Its block.
        device: Where it computes.
        preserve_rng: Whether its recompute repeats its dropout.
        index: Its position among the streamed layers.
        rules: What it is declared to take and give.
        model: The model around it, if known: it names tensors in errors.
        travelling: The adapters that come with the blocks, if they do.
        boundaries: Where its hidden states wait for the backward; None: on the device.
        turn: Whose turn it is; the same for all layers of a ring.
        live: What is checked beside, in a loop that isn't ours.
        look: Called before the layer's tensors are brought.
        checked: Whether a first visit found nothing undeclared.
    """

    layer: nn.Module
    forward: Callable[..., Any]
    manager: BlockManager
    block_index: int
    device: torch.device
    preserve_rng: bool
    index: int
    rules: SideRules
    model: nn.Module | None = None
    travelling: TravellingAdapters | None = None
    boundaries: Boundaries | None = None
    turn: Turn = field(default_factory=Turn)
    live: LiveChecks | None = None
    look: Callable[[], None] = _nothing
    checked: bool = False
    _uses: tuple[tuple[nn.Parameter, ...], object, AdapterUses] | None = None

    def bind(self, *, direction: int, wrap: bool = False) -> None:
        """Have the layer's tensors on the device: `BlockManager.bind` for all that travels."""
        self.manager.bind(self.block_index, direction=direction, wrap=wrap)
        if self.travelling is not None:
            self.travelling.bind(self.block_index, direction=direction, wrap=wrap)

    @contextlib.contextmanager
    def bound(self, *, direction: int, wrap: bool = False) -> Iterator[None]:
        """Have the layer's tensors on the device, and nobody else at work, in this context.

        In a loop that isn't ours the tensors are away again afterwards, so that who uses them
        then fails by their shape.
        """
        with self.turn:
            self.look()
            self.bind(direction=direction, wrap=wrap)
            try:
                yield
            finally:
                if self.live is not None:
                    self.manager.rest()

    def uses_of(
        self, adapters: Sequence[nn.Parameter], way: object, find: Callable[[], AdapterUses]
    ) -> AdapterUses:
        """How the layer uses its adapters; looked up again when they, or the way, are others."""
        known = self._uses
        if known is None or known[1] != way or not _same(known[0], adapters):
            known = self._uses = (tuple(adapters), way, find())
        return known[2]

    @property
    def name(self) -> str:
        """The layer as errors call it."""
        return f"layer {self.index} ({type(self.layer).__name__})"

    def refusal(self, what: str, remediation: str) -> PorosModelError:
        """The error that says what this layer does."""
        return PorosModelError(f"{self.name} {what}", remediation=remediation)

    def undeclared(self, what: str, field: str) -> PorosModelError:
        """The error that says what this layer does, and which field of its entry would allow it."""
        return self.refusal(
            f"{what}, which the table's entry of its family doesn't declare",
            f"if the model is meant so, set {field}=True in the entry (docs/adding-a-model.md)",
        )


def _same(some: Sequence[nn.Parameter], others: Sequence[nn.Parameter]) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))
