"""What a layer takes or gives without being declared to: refused by name.

None of it would fail by itself: the loss would be right, and gradients silently wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from poros.streaming.call_parts import Call, Changes, Frame, TensorSlot, same_value
from poros.streaming.streamed_layer import StreamedLayer

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def refuse_inputs(layer: StreamedLayer, call: Call, tensors: Sequence[Tensor]) -> None:
    """Refuse differentiable arguments that are not declared, and mappings that can't be made anew.

    Args:
        layer: The layer that is called.
        call: Its call.
        tensors: The call's tensors; the first is the hidden states.

    Raises:
        PorosModelError: One of them is there.
    """
    odd = call.odd_argument()
    if odd is not None:
        raise layer.refusal(
            f"takes a mapping in its argument {_name(layer, call, odd)} that can't be made anew",
            "give it a dict or UserDict, with no mapping among its values",
        )
    for k, tensor in enumerate(tensors[1:], start=1):
        if not tensor.requires_grad:
            continue
        if k < call.num_direct and not layer.rules.per_layer_input:
            name = call.places(layer.forward)[k].argument
            what = f"takes a second tensor that needs gradients, its argument {name}"
            raise layer.undeclared(what, "per_layer_input")
        if k >= call.num_direct and not layer.rules.shared_states:
            place = call.places(layer.forward)[k]
            what = f"reads {place.key!r}, which needs gradients, from {place.argument}"
            raise layer.undeclared(what, "shared_states")


def refuse_writes(layer: StreamedLayer, call: Call, changes: Sequence[Changes]) -> None:
    """Refuse writes into mappings of which the entry says nothing.

    Raises:
        PorosModelError: A mapping was written.
    """
    if layer.rules.shared_states:
        return
    for mapping, change in enumerate(changes):
        for key in [*change.written, *change.removed]:
            name = _name(layer, call, call.mapping_argument(mapping))
            raise layer.undeclared(f"writes {key!r} into {name}", "shared_states")


def refuse_lost_results(
    layer: StreamedLayer, call: Call, before: list[Any], after: list[Any], output: Frame
) -> None:
    """Refuse results that no output of the function carries: in lists, in opaque values.

    Args:
        layer: The layer that was called.
        call: Its call.
        before: The arguments as they were.
        after: The arguments as the call left them.
        output: What the layer gave.

    Raises:
        PorosModelError: There are such results.
    """
    for k, (given, left) in enumerate(zip(before, after, strict=True)):
        if not same_value(given, left):
            raise layer.refusal(
                f"changes its argument {_name(layer, call, k)}, which the model would not see",
                "such a layer can't be streamed",
            )
    for leaf in output.leaves:
        if not isinstance(leaf, (*_PLAIN, TensorSlot)):
            raise layer.refusal(
                f"gives a {type(leaf).__name__}, in which tensors would not be seen",
                "such a layer can't be streamed",
            )


def _name(layer: StreamedLayer, call: Call, argument: int) -> str:
    return call.argument_names(layer.forward)[argument]
