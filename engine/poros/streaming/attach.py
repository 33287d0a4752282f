"""Putting streamed forwards on a model's layers, and taking them off again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from poros.streaming.block_function import call_streamed
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import Boundaries
from poros.streaming.live_checks import LiveChecks, Turn
from poros.streaming.streamed_layer import SideRules, StreamedLayer
from poros.streaming.travelling import TravellingAdapters

__all__ = ["Attachment", "SideRules", "attach"]

HIDDEN_STATES_ONLY = SideRules()


class Attachment:
    """Layers whose forwards are streamed; `detach` gives the layers their own back.

    Attributes:
        boundaries: Where their hidden states wait, if not on the device.
    """

    def __init__(self, layers: Sequence[nn.Module], boundaries: Boundaries | None = None) -> None:
        """Use `attach`."""
        self.boundaries = boundaries
        # A forward may hang on the layer itself, compiled or wrapped by another library.
        self._own = [(layer, layer.__dict__.get("forward")) for layer in layers]
        self.streamed: list[StreamedLayer] = []
        self.turn = Turn()

    def travel(self, travelling: TravellingAdapters | None) -> None:
        """From the next step on, have these adapters come with the blocks."""
        for layer in self.streamed:
            layer.travelling = travelling

    def keep_on_host(self, boundaries: Boundaries) -> None:
        """From the next step on, have hidden states wait there for the backward."""
        self.boundaries = boundaries
        for layer in self.streamed:
            layer.boundaries = boundaries

    def detach(self) -> None:
        """Restore each layer's own forward; the frozen tensors stay where they are."""
        for layer, forward in self._own:
            layer.__dict__.pop("forward", None)
            if forward is not None:
                layer.forward = forward
        self._own = []

    def __enter__(self) -> Attachment:
        """Scope the attachment."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Detach, whatever happened."""
        self.detach()


def attach(
    layers: Sequence[nn.Module],
    manager: BlockManager,
    *,
    device: torch.device,
    layers_per_block: int = 1,
    drop: Callable[[object], bool] = lambda _: False,
    preserve_rng: bool = True,
    rules: SideRules = HIDDEN_STATES_ONLY,
    model: nn.Module | None = None,
    travelling: TravellingAdapters | None = None,
    boundaries: Boundaries | None = None,
    live: LiveChecks | None = None,
) -> Attachment:
    """Stream `layers` through `manager`.

    A layer that takes or gives more than `rules` say raises PorosModelError in its first forward
    in grad mode.

    Args:
        layers: The model's decoder layers, in order; adapters may already be on them.
        manager: The ring that holds their blocks.
        device: Where the layers compute.
        layers_per_block: Layers that share one block.
        drop: True for a value (a KV cache) that a layer may not see while gradients are on.
        preserve_rng: Repeat dropout in the recompute; without it gradients are not exact.
        rules: What the layers take and give beside hidden states.
        model: The model around the layers, to name its parameters in errors.
        travelling: Adapters that come with the blocks; None: all stay on the device.
        boundaries: Where hidden states wait for the backward; None: on the device.
        live: What is checked where the loop around the layers isn't ours.
    """
    attachment = Attachment(layers, boundaries)
    for position, layer in enumerate(layers):
        streamed = StreamedLayer(
            layer=layer,
            forward=layer.forward,
            manager=manager,
            block_index=position // layers_per_block,
            device=device,
            preserve_rng=preserve_rng,
            index=position,
            rules=rules,
            model=model,
            travelling=travelling,
            boundaries=boundaries,
            turn=attachment.turn,
            live=live,
        )
        layer.forward = _forward(streamed, drop)
        attachment.streamed.append(streamed)
    return attachment


def _forward(streamed: StreamedLayer, drop: Callable[[object], bool]) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return call_streamed(streamed, drop, args, kwargs)

    return forward
