"""Whether a forward from before still waits for a backward, which would read what is to travel.

Its graph holds the weights as they hang in the model. Away, they are empty: bitsandbytes' kernels
on the CPU would read past their end. A graph whose backward is done holds nothing any more, whoever
keeps its loss.
"""

from __future__ import annotations

import functools
import gc
import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import Node

from poros.errors import PorosModelError
from poros.streaming.block import FrozenTensor
from poros.streaming.graph_walk import nodes_under

_SAVED = "_raw_saved_"


def refuse_open_graphs(groups: Sequence[Sequence[FrozenTensor]]) -> None:
    """Refuse while a graph needs what is to travel.

    Args:
        groups: What that is.

    Raises:
        PorosModelError: With the line to change.
    """
    # What nobody holds any more may wait for the collector, as after an error in a notebook.
    if not _is_needed(groups) or (gc.collect() >= 0 and not _is_needed(groups)):
        return
    raise PorosModelError(
        "a forward of the model still waits for its backward, which needs the layers' weights",
        where="prepare()",
        remediation="call loss.backward() before it, or let go of the loss and the output: "
        "del loss, output",
    )


def _is_needed(groups: Sequence[Sequence[FrozenTensor]]) -> bool:
    travelling = {_place(f.value) for group in groups for f in group if f.value.numel()}
    holders = {id(f.holder) for group in groups for f in group}
    with torch._C.DisableTorchFunctionSubclass():
        kinds = frozenset(_kinds(Tensor))  # asked of each of half a million objects
        tensors = [found for found in gc.get_objects() if type(found) in kinds]
        results = [tensor for tensor in tensors if tensor.grad_fn is not None]
        return any(
            id(kept) in holders or (isinstance(kept, Tensor) and _place(kept) in travelling)
            for node in nodes_under(results)
            for kept in _kept(node)
        )


def _kinds(kind: type[Tensor]) -> Iterator[type[Tensor]]:
    yield kind
    for of_it in type.__subclasses__(kind):
        yield from _kinds(of_it)


def _place(tensor: Tensor) -> tuple[torch.device, int] | None:
    try:
        return tensor.device, tensor.data_ptr()
    except RuntimeError:  # the compiler's, or sparse: without memory of its own
        return None


def _kept(node: Node) -> Iterator[object]:
    """What an operation holds for its backward; nothing, if that is done."""
    try:
        saved = [getattr(node, name) for name in _saved_names(type(node))]
    except RuntimeError:  # let go of, in Python's operations
        return
    for one in itertools.chain.from_iterable(s if isinstance(s, tuple) else (s,) for s in saved):
        # What hooks have packed is no weight any more: checkpointing computes it again.
        if one is not None and one.unpack_hook is None:
            yield one.data
    yield from getattr(node, "__dict__", {}).values()  # bitsandbytes keeps its statistics so


@functools.cache
def _saved_names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_SAVED))
