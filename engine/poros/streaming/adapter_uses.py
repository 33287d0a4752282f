"""How a layer uses each of its adapters: how often, and whether only by autocast's cast of it.

Seen in a graph. Each use is an edge to the weight's leaf, or to the one cast that autocast made of
it and keeps for all its uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import Node

from poros.streaming.graph_walk import CAST, leaf_of, nodes_under


@dataclass(frozen=True)
class AdapterUses:
    """Of each weight, in its order.

    Attributes:
        counts: How often it is used; more than one gradient is added up inside the layer if so.
        cast: To which type autocast casts it for all its uses; None: it is used as it is.
    """

    counts: tuple[int, ...]
    cast: tuple[torch.dtype | None, ...]


def find_uses(
    results: Sequence[Tensor], weights: Sequence[Tensor], casts_to: torch.dtype | None
) -> AdapterUses:
    """Look through a graph; call it where it was made, with autocast as it was.

    Args:
        results: Tensors with their graph.
        weights: Leaves of it.
        casts_to: The type that autocast casts to and keeps; None: it doesn't.
    """
    readers: dict[int, list[Node]] = {id(weight): [] for weight in weights}
    edges: Counter[Node] = Counter()
    for node in nodes_under(results):
        for child, _ in node.next_functions:
            if child is None:
                continue
            edges[child] += 1
            leaf = leaf_of(child)
            if leaf is not None and id(leaf) in readers:
                readers[id(leaf)].append(node)
    counts, cast = [], []
    for weight in weights:
        by = readers[id(weight)]
        # A cast that the layer makes by itself is made anew at each call.
        is_cast = casts_to is not None and len(by) == 1 and by[0] is _kept_cast(weight)
        counts.append(edges[by[0]] if is_cast else len(by))
        cast.append(casts_to if is_cast else None)
    return AdapterUses(tuple(counts), tuple(cast))


def _kept_cast(weight: Tensor) -> Node | None:
    """The cast that autocast keeps of a matrix or of a bias; a new one, if it keeps none."""
    if weight.dim() not in (1, 2):
        return None
    with torch.enable_grad():
        if weight.dim() == 1:
            used = F.linear(weight.new_zeros(1, 1), weight.new_zeros(len(weight), 1), weight)
        else:
            used = torch.mm(weight.new_zeros(1, len(weight)), weight)
    nodes = [node for node in nodes_under([used]) if node.name() == CAST]
    return nodes[0] if nodes else None
