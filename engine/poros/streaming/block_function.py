"""A layer as one autograd function: forward keeps no graph, backward computes the layer again.

[Note: no graph outlives its slot]
Stock kernels keep the packed weight on their autograd node, where a slot's next block overwrites
it: the loss stays equal and gradients are silently wrong. So the forward's graph is dropped at
once, and backward builds a fresh one while the block is bound and consumes it before it returns.

[Note: forward in grad mode]
The forward builds the graph that it drops. A no-grad forward takes other kernels at one token,
and a compiled layer another graph; both would be another function than the resident model's.

[Note: stand-ins]
The recompute differentiates stand-ins that share the adapters' memory and returns their
gradients, so AccumulateGrad, hooks on parameters and `autograd.grad` see each gradient once, as
in a resident model.

[Note: refused, where a resident graph would know better]
A recompute is the forward only while nothing that it reads has changed. Writes into a layer's
inputs or adapters, adapters switched on or off, and a second derivative raise an error here, since
they would otherwise give other gradients without a word.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from poros.streaming.ambient import Ambient, RandomState, random_state_restored
from poros.streaming.block_manager import BlockManager

Adapters = dict[nn.Parameter, list[tuple[nn.Module, str]]]
"""What is trained inside a layer, and under which names it hangs."""

_TENSOR = object()
"""Stands for a tensor among a layer's flat outputs."""


@dataclass(frozen=True)
class StreamedLayer:
    """A layer, its own forward, and the block its weights travel in."""

    layer: nn.Module
    forward: Callable[..., Any]
    manager: BlockManager
    block_index: int
    device: torch.device
    preserve_rng: bool


@dataclass
class Visit:
    """One call of a layer: all that the recompute needs beside the tensors themselves."""

    streamed: StreamedLayer
    leaves: list[Any]
    spec: pytree.TreeSpec
    tensor_positions: list[int]
    requires_grad: list[bool]
    adapters: Adapters
    ambient: Ambient
    random: RandomState | None
    output_spec: pytree.TreeSpec | None = None
    output_leaves: list[Any] = field(default_factory=list)

    def run(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Call the layer on detached `tensors` in grad mode; the flat outputs, with their graph."""
        leaves = list(self.leaves)
        for position, tensor in zip(self.tensor_positions, tensors, strict=True):
            leaves[position] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        with torch.enable_grad():
            output = self.streamed.forward(*args, **kwargs)
        flat, self.output_spec = pytree.tree_flatten(output)
        return flat

    def detached(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors as leaves of a new graph, each requiring grad as it did in the model."""
        return [
            tensor.detach().requires_grad_(flag)
            for tensor, flag in zip(tensors, self.requires_grad, strict=True)
        ]


class _BlockFunction(torch.autograd.Function):
    """Inputs: the call's tensors, then the layer's adapters. Outputs: its tensor results."""

    @staticmethod
    def forward(ctx: Any, visit: Visit, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = tensors[: len(visit.tensor_positions)]
        visit.streamed.manager.bind(visit.streamed.block_index, direction=1)
        versions = [tensor._version for tensor in inputs]
        flat = visit.run(visit.detached(inputs))
        if versions != [tensor._version for tensor in inputs]:
            raise RuntimeError("a streamed layer wrote into an input, as its recompute would again")
        results = [leaf for leaf in flat if isinstance(leaf, Tensor)]
        outputs = tuple(result.detach() for result in results)
        ctx.mark_non_differentiable(
            *(out for out, res in zip(outputs, results, strict=True) if not res.requires_grad)
        )
        visit.output_leaves = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in flat]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)  # the adapters too: autograd notices writes into them
        ctx.visit = visit
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        visit: Visit = ctx.visit
        streamed = visit.streamed
        inputs = visit.detached(ctx.saved_tensors[: len(visit.tensor_positions)])
        if _trainable(streamed.layer).keys() != visit.adapters.keys():
            raise RuntimeError("adapters were switched on or off between forward and backward")
        streamed.manager.bind(streamed.block_index, direction=-1)
        with (
            visit.ambient.entered(streamed.layer),
            random_state_restored(visit.random, streamed.device),
            _stand_ins(visit.adapters) as adapters,
        ):
            flat = visit.run(inputs)
        results = [leaf for leaf in flat if isinstance(leaf, Tensor)]
        # Outside the forward's surroundings: a resident backward would not be in them either.
        return (None, *_gradients(results, grads, [*inputs, *adapters]))


def call_streamed(
    streamed: StreamedLayer,
    drop: Callable[[object], bool],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a streamed layer as the model calls it.

    Args:
        streamed: The layer.
        drop: True for a value that may not be written twice (a KV cache), decided by type;
            such values become None while gradients are on.
        args: The model's positional arguments.
        kwargs: The model's keyword arguments.
    """
    if not torch.is_grad_enabled():
        streamed.manager.bind(streamed.block_index, direction=1, wrap=True)
        return streamed.forward(*args, **kwargs)
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=drop)
    leaves = [None if drop(leaf) else leaf for leaf in leaves]
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors: list[Tensor] = [leaves[k] for k in positions]
    for k in positions:
        leaves[k] = None  # saved by autograd, which frees them in time and notices in-place writes
    adapters = _trainable(streamed.layer)
    visit = Visit(
        streamed=streamed,
        leaves=leaves,
        spec=spec,
        tensor_positions=positions,
        requires_grad=[tensor.requires_grad for tensor in tensors],
        adapters=adapters,
        ambient=Ambient.capture(streamed.layer, streamed.device),
        random=RandomState.capture(streamed.device) if streamed.preserve_rng else None,
    )
    outputs = iter(_BlockFunction.apply(visit, *tensors, *adapters))  # type: ignore[no-untyped-call]  # torch's
    assert visit.output_spec is not None
    flat = [next(outputs) if leaf is _TENSOR else leaf for leaf in visit.output_leaves]
    return pytree.tree_unflatten(flat, visit.output_spec)


def _trainable(layer: nn.Module) -> Adapters:
    found: Adapters = {}
    for module in layer.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.requires_grad:
                found.setdefault(parameter, []).append((module, name))
    return found


@contextlib.contextmanager
def _stand_ins(adapters: Adapters) -> Iterator[list[Tensor]]:
    """Put leaves that share the adapters' memory in their place, wherever one hangs."""
    stand_ins = [nn.Parameter(parameter.detach()) for parameter in adapters]
    for places, stand_in in zip(adapters.values(), stand_ins, strict=True):
        for module, name in places:
            module._parameters[name] = stand_in
    try:
        yield list(stand_ins)
    finally:
        for parameter, places in adapters.items():
            for module, name in places:
                module._parameters[name] = parameter


def _gradients(
    results: Sequence[Tensor], grads: Sequence[Tensor | None], leaves: Sequence[Tensor]
) -> list[Tensor | None]:
    pairs = [
        (result, grad)
        for result, grad in zip(results, grads, strict=True)
        if grad is not None and result.requires_grad
    ]
    wanted = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
    gradients: list[Tensor | None] = [None] * len(leaves)
    if pairs and wanted:
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            [leaves[k] for k in wanted],
            [grad for _, grad in pairs],
            allow_unused=True,
        )
        for k, gradient in zip(wanted, found, strict=True):
            gradients[k] = gradient
    return gradients
