"""The operations of an autograd graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import Node

CAST = "ToCopyBackward0"
"""What a change of type is called there."""


def nodes_under(results: Sequence[Tensor]) -> Iterator[Node]:
    """Each operation that the results hang on, once."""
    nodes: list[Node] = [result.grad_fn for result in results if result.grad_fn is not None]
    seen = set(nodes)  # of the nodes themselves: a node that is let go gives its id to another
    while nodes:
        node = nodes.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                nodes.append(child)


def leaf_of(node: Node) -> Tensor | None:
    """The leaf whose gradient is added up here; None for any other operation."""
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, Tensor) else None
