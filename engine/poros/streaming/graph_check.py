"""Whether a layer's results hang on anything but its inputs and its adapters.

A tensor that reaches a layer another way (an attribute, a module outside it, a value that hides
it) is no input of the layer's function: its gradient would be lost without a word. The graph of
the first visit shows it. A compiled layer's graph is one node whose edges are all that the
compiled code reads, so it is checked in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn

from poros.streaming.graph_walk import leaf_of, nodes_under
from poros.streaming.streamed_layer import StreamedLayer


def refuse_foreign_leaves(
    layer: StreamedLayer, results: Sequence[Tensor], known: Iterable[Tensor]
) -> None:
    """Refuse results that depend on a leaf which is not `known`.

    Args:
        layer: The layer that gave the results.
        results: Tensors with their graph.
        known: The inputs, detached from the model's graph, and the adapters.

    Raises:
        PorosModelError: There is such a leaf; it is named if it is the model's or an attribute.
    """
    expected = {id(tensor) for tensor in known}
    for leaf in _leaves(results):
        if id(leaf) not in expected:
            raise layer.refusal(
                f"computes with {_describe(layer, leaf)}, which needs gradients and is neither "
                "an argument nor an adapter inside the layer",
                "give it as an argument that the table's entry of the family declares "
                "(docs/adding-a-model.md), or freeze it",
            )


def _leaves(results: Sequence[Tensor]) -> Iterator[Tensor]:
    """The leaves that need gradients under `results`."""
    yield from (result for result in results if result.is_leaf and result.requires_grad)
    yield from (leaf for node in nodes_under(results) if (leaf := leaf_of(node)) is not None)


def _describe(layer: StreamedLayer, leaf: Tensor) -> str:
    for name, tensor in _named(layer):
        if tensor is leaf:
            return name
    return f"a {leaf.dtype} tensor of shape {tuple(leaf.shape)} from outside"


def _named(layer: StreamedLayer) -> Iterator[tuple[str, Tensor]]:
    model: nn.Module = layer.layer if layer.model is None else layer.model
    yield from model.named_parameters()
    for path, module in layer.layer.named_modules():
        attributes = vars(module) | module._buffers
        for name, value in attributes.items():
            if isinstance(value, Tensor):
                yield f"its attribute {path}.{name}".replace(" .", " "), value
