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

[Note: a graph doesn't keep the model]
Autograd's queue keeps operations of a backward that failed until the next one, and a hook of a
user's may keep a layer's results in the layer itself. So a graph knows its layer weakly: a model
that nobody else holds goes, with all its bytes on the host.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from poros.streaming.ambient import Ambient, RandomState, random_state_restored
from poros.streaming.boundaries import Boundary, boundary_of
from poros.streaming.call_parts import Call, Drop, Frame, Parts
from poros.streaming.graph_check import refuse_foreign_leaves
from poros.streaming.live_checks import NO_MORE
from poros.streaming.live_visit import LiveVisit
from poros.streaming.refusals import refuse_inputs, refuse_lost_results, refuse_writes
from poros.streaming.streamed_layer import StreamedLayer

Adapters = dict[nn.Parameter, list[tuple[nn.Module, str]]]
"""What is trained inside a layer, and under which names it hangs."""


@dataclass
class Visit:
    """One call of a layer: all that the recompute needs beside the tensors themselves.

    Attributes:
        layer: The layer, as long as it is streamed.
        call: Its arguments without their tensors.
        requires_grad: Which of the call's tensors take gradients; the first is the hidden states.
        adapters: What was trained inside the layer.
        ambient: What surrounded the call.
        random: The states that it drew from.
        live: What is checked of it, in a loop that isn't ours.
        output_spec: What the layer gave and its changes to mappings, without tensors.
    """

    layer: weakref.ref[StreamedLayer]
    call: Call
    requires_grad: list[bool]
    adapters: Adapters
    ambient: Ambient
    random: RandomState | None = None
    live: LiveVisit | None = None
    output_spec: Frame | None = None

    @property
    def streamed(self) -> StreamedLayer:
        """The layer.

        Raises:
            RuntimeError: It was given back, or the model is gone.
        """
        streamed = self.layer()
        if streamed is None:
            raise RuntimeError(NO_MORE)
        return streamed

    def run(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Call the layer on detached `leaves` in grad mode; its results, with their graph."""
        streamed, call = self.streamed, self.call
        with torch.enable_grad():
            tensors = [_as_result(leaf) if leaf.requires_grad else leaf for leaf in leaves]
            values, mappings = call.filled(tensors)
            args, kwargs = call.split(values)
            output = streamed.forward(*args, **kwargs)
        changes = [
            frame.changes(mapping, tensors, self.requires_grad)
            for frame, mapping in zip(call.mappings, mappings, strict=True)
        ]
        parts = Parts()
        self.output_spec = parts.frame((output, changes))
        refuse_writes(streamed, call, changes)
        if not streamed.checked:
            before = [frame.filled(tensors, mappings) for frame in call.arguments]
            refuse_lost_results(streamed, call, before, values, self.output_spec)
            refuse_foreign_leaves(streamed, parts.tensors, [*leaves, *self.adapters])
            streamed.checked = True
        return parts.tensors

    def detached(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors as leaves of a new graph, each requiring grad as it did in the model."""
        return [
            tensor.detach().requires_grad_(flag)
            for tensor, flag in zip(tensors, self.requires_grad, strict=True)
        ]


class _AsResult(torch.autograd.Function):
    """A leaf as the result of another operation, which it is in the resident model.

    Autocast casts a leaf once and keeps the cast; the gradients of all its uses would be added in
    the lower precision.
    """

    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _as_result(leaf: Tensor) -> Tensor:
    result: Tensor = _AsResult.apply(leaf)  # type: ignore[no-untyped-call]  # torch's
    return result


class _BlockFunction(torch.autograd.Function):
    """Inputs: the call's tensors, then the layer's adapters. Outputs: its tensor results."""

    @staticmethod
    def forward(ctx: Any, visit: Visit, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = tensors[: len(visit.requires_grad)]
        versions = [tensor._version for tensor in inputs]
        streamed = visit.streamed
        with streamed.bound(direction=1), _leaving(streamed, inputs) as boundary:
            if streamed.preserve_rng:
                visit.random = RandomState.capture(streamed.device)
            results = visit.run(visit.detached(inputs))
        _forget_casts(streamed)
        if versions != [tensor._version for tensor in inputs]:
            raise RuntimeError("a streamed layer wrote into an input, as its recompute would again")
        outputs = tuple(result.detach() for result in results)
        if visit.live is not None:
            visit.live.forward_done(results)
        ctx.mark_non_differentiable(
            *(out for out, res in zip(outputs, results, strict=True) if not res.requires_grad)
        )
        ctx.set_materialize_grads(False)
        # The adapters too: autograd notices writes into them.
        kept = tensors if visit.live is None else tensors[: len(inputs) + len(visit.adapters)]
        ctx.save_for_backward(*(kept if boundary is None else (boundary.token, *kept[1:])))
        ctx.visit, ctx.away = visit, boundary is not None
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        visit: Visit = ctx.visit
        streamed, num_inputs = visit.streamed, len(visit.requires_grad)
        saved = list(ctx.saved_tensors[:num_inputs])
        boundary = boundary_of(saved[0]) if ctx.away else None
        if boundary is not None:
            saved[0] = boundary.arrive()
        inputs = visit.detached(saved)
        del saved
        with streamed.bound(direction=-1):
            _refuse_changes(visit)
            if boundary is not None:
                boundary.fetch_before()  # after the next block, needed as early and larger
            with (
                visit.ambient.entered(streamed.layer),
                random_state_restored(visit.random, streamed.device),
                _stand_ins(visit.adapters) as adapters,
            ):
                results = visit.run(inputs)
                if visit.live is not None:
                    visit.live.recomputed(results, adapters)
            # Outside the forward's surroundings: a resident backward would not be in them either.
            found = _gradients(results, grads, [*inputs, *adapters])
        if visit.live is not None:
            visit.live.input_leaving(found[0])
        return (
            None,
            *found[:num_inputs][:1],
            *side_gradients(visit, found[1:num_inputs]),
            *_adapter_gradients(visit, found[num_inputs:]),
        )


def _refuse_changes(visit: Visit) -> None:
    if _trainable(visit.streamed.layer).keys() != visit.adapters.keys():
        raise RuntimeError("adapters were switched on or off between forward and backward")
    if visit.live is not None:
        visit.live.refuse_changes()


def side_gradients(visit: Visit, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    """The gradients of a call's tensors beside its hidden states, as they leave the layer.

    Which they are: ``visit.call.places(visit.streamed.forward)[1:]``.
    """
    del visit
    return gradients


def _leaving(
    streamed: StreamedLayer, inputs: Sequence[Tensor]
) -> contextlib.AbstractContextManager[Boundary | None]:
    """Send the hidden states to the host meanwhile, if that is where they wait for backward."""
    if streamed.boundaries is None or not inputs:
        return contextlib.nullcontext()
    return streamed.boundaries.leaving(inputs[0])


def _trained_inputs(streamed: StreamedLayer, adapters: Adapters) -> list[Tensor]:
    weights = list(adapters)
    return [*weights] if streamed.travelling is None else streamed.travelling.inputs(weights)


def _adapter_gradients(visit: Visit, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What autograd gets for `_trained_inputs`; a travelling adapter's goes to its block's sum."""
    travelling = visit.streamed.travelling
    if visit.live is not None:
        return visit.live.leaving(gradients)
    if travelling is None:
        return list(gradients)
    return travelling.take(dict(zip(visit.adapters, gradients, strict=True)))


def _forget_casts(streamed: StreamedLayer) -> None:
    """Let go of the casts of adapters that leave the device: autocast would keep all of them.

    The graph that they belong to is dropped as well. A weight that stays may be used again, and
    then its cast has to be the same one.
    """
    if streamed.travelling is not None and streamed.travelling.alone:
        torch.clear_autocast_cache()


def call_streamed(
    streamed: StreamedLayer, drop: Drop, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a streamed layer as the model calls it.

    Args:
        streamed: The layer.
        drop: True for a value that may not be written twice (a KV cache), decided by type;
            such values become None while gradients are on.
        args: The model's positional arguments.
        kwargs: The model's keyword arguments.

    Raises:
        PorosModelError: The layer takes or gives what its family's entry doesn't declare.
    """
    if not torch.is_grad_enabled():
        with streamed.bound(direction=1, wrap=True):
            return streamed.forward(*args, **kwargs)
    # Only autograd keeps the tensors: it frees them in time and notices writes into them.
    call, parts = Call.of(args, kwargs, drop)
    refuse_inputs(streamed, call, parts.tensors)
    with streamed.turn:  # another thread's recompute has stand-ins and flags of its own there
        visit, trained = _begin(streamed, call, parts.tensors)
    outputs = _BlockFunction.apply(visit, *parts.tensors, *trained)  # type: ignore[no-untyped-call]  # torch's
    assert visit.output_spec is not None
    output, changes = visit.output_spec.filled(outputs)
    for mapping, change in zip(parts.mappings, changes, strict=True):
        change.apply_to(mapping)
    return output


def _begin(
    streamed: StreamedLayer, call: Call, tensors: Sequence[Tensor]
) -> tuple[Visit, list[Tensor]]:
    """Take a call down; what its function takes beside the call's tensors."""
    adapters = _trainable(streamed.layer)
    visit = Visit(
        layer=weakref.ref(streamed),
        call=call,
        requires_grad=[tensor.requires_grad for tensor in tensors],
        adapters=adapters,
        ambient=Ambient.capture(streamed.layer, streamed.device),
    )
    trained = _trained_inputs(streamed, adapters)
    if streamed.live is not None:
        visit.live = LiveVisit(streamed, streamed.live, list(adapters), tensors[0])
        trained += visit.live.casts
    return visit, trained


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
    results: list[Tensor], grads: Sequence[Tensor | None], leaves: Sequence[Tensor]
) -> list[Tensor | None]:
    """The leaves' gradients; `results` are let go of first, their graph needs none of them."""
    pairs = [
        (get_gradient_edge(result), grad)
        for result, grad in zip(results, grads, strict=True)
        if grad is not None and result.requires_grad
    ]
    results.clear()
    wanted = [k for k, leaf in enumerate(leaves) if leaf.requires_grad]
    gradients: list[Tensor | None] = [None] * len(leaves)
    if pairs and wanted:
        found = torch.autograd.grad(
            [edge for edge, _ in pairs],
            [leaves[k] for k in wanted],
            [grad for _, grad in pairs],
            allow_unused=True,
        )
        for k, gradient in zip(wanted, found, strict=True):
            gradients[k] = gradient
    return gradients
