"""Whether somebody writes into a streamed layer's base weights, or begins to train them."""

from __future__ import annotations

from torch import nn

from poros.streaming.block import Block
from poros.streaming.streamed_layer import StreamedLayer


class FrozenWatch:
    """Looks at a layer's base weights at each of its calls.

    Their bytes are on the host, and what hangs in the layer is empty, or a slot's: a write would
    be lost without a word.

    Args:
        block: What they travel in.
        streamed: The layer.
    """

    def __init__(self, block: Block, streamed: StreamedLayer) -> None:
        """Take their versions down."""
        self._block, self._streamed = block, streamed
        own = {id(parameter) for parameter in streamed.layer.parameters()}
        self._watched = [
            (k, holder, holder._version)
            for k, holder in enumerate(block.holders)
            if isinstance(holder, nn.Parameter) and id(holder) in own and not holder.is_inference()
        ]

    def look(self) -> None:
        """Look at them, before they are brought.

        Raises:
            PorosModelError: They aren't what was prepared.
        """
        tensors = self._block.tensors
        for k, holder, version in self._watched:
            if holder._version != version or holder.data_ptr() != tensors[k].data_ptr():
                raise self._refused("was written to", k)
            if holder.requires_grad:
                raise self._refused("is to be trained", k)

    def _refused(self, what: str, k: int) -> Exception:
        return self._streamed.refusal(
            f"has a base weight that {what}, {self._block.places[k].name}: its bytes are away",
            "poros.unprepare(model) first, and prepare it again afterwards",
        )
