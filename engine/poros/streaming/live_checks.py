"""What is looked after where the loop around the layers is a user's own.

A trainer of ours calls a layer, and its backward, in one way. A user's loop may do anything between
the two: change what a layer reads beside tensors, take tensors out of it, call from two threads. A
resident model has kept what it needs by then; a recompute looks again. Each of these checks turns
other gradients into an error.

[Note: looked at on the first visit, and whenever somebody hangs in]
That a recompute gives what the forward gave is checked by a fingerprint of the results, which
waits for the device. A layer that did it once will do it again, unless hooks or replaced forwards
inside it have a life of their own: then each visit is checked.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules import module as every_module

from poros.streaming.adapter_uses import AdapterUses
from poros.streaming.graph_walk import CAST, leaf_of, nodes_under
from poros.streaming.shared_casts import SharedCasts

NO_MORE = "the layers were streamed in the forward, and are no more"
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Turn:
    """One layer at a time: two threads would point each other's layers at other blocks."""

    def __init__(self) -> None:
        """Nobody computes, and it is open."""
        self._lock = threading.Lock()
        self._holder: int | None = None
        self.closed = False

    def __enter__(self) -> Turn:
        """Wait for the layer that another thread computes.

        Raises:
            RuntimeError: This very thread computes one, or the layers are streamed no more.
        """
        if self._holder == threading.get_ident():
            raise RuntimeError("a streamed layer was called while this thread computes another")
        self._lock.acquire()
        self._holder = threading.get_ident()
        if self.closed:
            self._leave()
            raise RuntimeError(NO_MORE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the next one in."""
        self._leave()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Keep other threads from computing; this one may be at it."""
        if self._holder == threading.get_ident():
            yield
            return
        with self:
            yield

    def _leave(self) -> None:
        self._holder = None
        self._lock.release()


class LiveChecks:
    """What is checked of the layers of one model.

    Args:
        habits: What the modules of a layer read beside tensors: equal, or its recompute is another
            function.
        exact: Whether equal bits are claimed: what would only add in another order is refused too.
        repeats: Whether a recompute draws the forward's random numbers.
        device: Where the layers compute.

    Attributes:
        casts: Autocast's casts of adapters.
    """

    def __init__(
        self,
        habits: Callable[[Sequence[nn.Module]], object],
        *,
        exact: bool,
        repeats: bool,
        device: torch.device,
    ) -> None:
        """Nothing is seen yet."""
        self.habits, self.exact = habits, exact
        self.casts = SharedCasts(device)
        self._repeats = repeats
        self._verified: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._task = -1
        self._given: set[nn.Parameter] = set()

    def prints_of(
        self, layer: nn.Module, results: Sequence[Tensor], *, hooked: bool
    ) -> list[Tensor] | None:
        """Fingerprints of a forward's results, if its recompute is to be held to them."""
        if not (self.exact and self._repeats) or (layer in self._verified and not hooked):
            return None
        return [_fingerprint(result) for result in results]

    def are_repeated(
        self, layer: nn.Module, prints: Sequence[Tensor], results: Sequence[Tensor]
    ) -> bool:
        """Whether a recompute gave what has these fingerprints."""
        found = [_fingerprint(result) for result in results]
        if len(found) != len(prints) or not all(map(torch.equal, found, prints)):
            return False
        self._verified.add(layer)
        return True

    def added_twice(self, adapters: Sequence[nn.Parameter], uses: AdapterUses) -> list[int]:
        """Which adapters a layer uses more than once, after another call in the same backward.

        A resident backward adds each use's gradient by itself.
        """
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task, self._given = task, set()
        again = [
            k
            for k, adapter in enumerate(adapters)
            if self.exact and uses.counts[k] > 1 and adapter in self._given
        ]
        self._given.update(adapters)
        return again


class SoleReader:
    """Whether a layer alone reads its hidden states.

    A resident backward adds the gradient of each use by itself; a layer gives the sum of its own.
    With another reader that is another order.

    Args:
        hidden: What the layer is called with.
        complain: Makes the error.
    """

    def __init__(self, hidden: Tensor, complain: Callable[[], Exception]) -> None:
        """Look at what arrives at the operation that made `hidden`."""
        self._gave: Tensor | None = None
        node, number = hidden.grad_fn, hidden.output_nr
        if node is None or hidden._backward_hooks:
            return  # a user's hook may change the gradient on its way
        seen = weakref.ref(hidden)

        def look(gradients: tuple[Tensor | None, ...]) -> None:
            gave, self._gave = self._gave, None
            alive = seen()
            hooked = alive is not None and alive._backward_hooks
            if gave is not None and gradients[number] is not gave and not hooked:
                raise complain()

        node.register_prehook(look)

    def gave(self, gradient: Tensor | None) -> None:
        """Remember what the layer's backward gives; kept until it arrives."""
        self._gave = gradient


def is_hooked(modules: Sequence[nn.Module]) -> bool:
    """Whether anything but these computes inside a layer: a hook, or a replaced forward.

    Args:
        modules: The layer, whose own hooks are outside, then what is in it.
    """
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
        return True
    return any(
        module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
        for module in modules[1:]
    )


def close_graph(results: Sequence[Tensor], complain: Callable[[], Exception]) -> None:
    """Make a graph that is dropped refuse a backward: a hook may have taken a tensor out of it.

    Its kernels would read a slot that holds another block by then.

    Args:
        results: Tensors with their graph.
        complain: Makes the error.
    """

    def refuse(_: tuple[Tensor | None, ...]) -> None:
        raise complain()

    for node in nodes_under(results):
        if leaf_of(node) is None and not _casts_leaf(node):
            node.register_prehook(refuse)


def _casts_leaf(node: Node) -> bool:
    """Whether it is autocast's cast of a weight, perhaps, which has readers outside the layer."""
    below = [child for child, _ in node.next_functions if child is not None]
    return node.name() == CAST and all(leaf_of(child) is not None for child in below)


def _fingerprint(tensor: Tensor) -> Tensor:
    """(2,) int64 on the tensor's device: sums over its bits, the second one of every other word."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    words = tensor.detach().contiguous().view(-1)
    if words.dtype != torch.bool:
        words = words.view(_WORDS[words.element_size()])
    sums = [torch.sum(part, dtype=torch.int64) for part in (words, words[::2])]
    return torch.stack(sums)
