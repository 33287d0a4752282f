"""Mutants of tensors that layers take and give beside hidden states: each cuts one's gradient.

The forward stays as it is, so the loss of the first step is equal; red are the adapters that such
a tensor's gradient reaches, by name, and those below them. The numbers are the layers of the tiny
gemma4 with shared keys and values (`family_models`): layer 2 gives those of sliding attention,
which 4 and 5 take, layer 3 those of full attention, which 6 takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import torch
from torch import Tensor

from poros.arch_registry import find_architecture
from poros.measure.mutant_bench import Bench, Mutant
from poros.measure.plan import Plan
from poros.streaming import block_function
from poros.streaming.call_parts import Place

LOSSES = r"^loss\."
FIRST_GRAD = r"^grad\..*layers\.0\."
KEYS_AND_VALUES = r"self_attn\.[kv]_proj\."
OTHERS = r"(self_attn\.[qo]_proj|mlp\..*|per_layer_\w+)\."


def _layer(numbers: str, linears: str = "") -> str:
    return rf"^grad\..*layers\.[{numbers}]\.{linears}"


def _without_gradient(
    cut: Callable[[Place], bool],
) -> Callable[[Bench], contextlib.AbstractContextManager[None]]:
    """A patch under which no gradient leaves a layer for the side tensors that `cut` picks."""

    @contextlib.contextmanager
    def patch(bench: Bench) -> Iterator[None]:
        del bench

        def some(
            visit: block_function.Visit, gradients: Sequence[Tensor | None]
        ) -> list[Tensor | None]:
            places = visit.call.places(visit.streamed.forward)[1:]
            return [
                torch.zeros_like(gradient) if gradient is not None and cut(place) else gradient
                for place, gradient in zip(places, gradients, strict=True)
            ]

        with mock.patch.object(block_function, "side_gradients", some):
            yield

    return patch


SIDE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "per-layer inputs get no gradient",
        _without_gradient(lambda place: not place.in_mapping),
        first=r"^grad\..*per_layer_model_projection\.lora_[AB]",
        equal=(LOSSES, _layer("0-6")),
        differ=(r"^grad\..*per_layer_model_projection\.lora_[AB]",),
    ),
    Mutant(
        "shared keys and values of sliding attention get no gradient from their readers",
        _without_gradient(lambda place: place.key == "sliding_attention"),
        first=FIRST_GRAD,
        equal=(LOSSES, _layer("3-6"), _layer("2", OTHERS)),
        differ=(_layer("2", KEYS_AND_VALUES), _layer("01")),
    ),
    Mutant(
        "shared keys and values of full attention get no gradient from their readers",
        _without_gradient(lambda place: place.key == "full_attention"),
        first=FIRST_GRAD,
        equal=(LOSSES, _layer("4-6"), _layer("3", OTHERS)),
        differ=(_layer("3", KEYS_AND_VALUES), _layer("0-2")),
    ),
    Mutant(
        "shared states get only the gradient of their writer's own use",
        _without_gradient(lambda place: place.in_mapping),
        first=FIRST_GRAD,
        equal=(LOSSES, _layer("4-6"), _layer("3", OTHERS)),
        differ=(_layer("23", KEYS_AND_VALUES), _layer("01")),
    ),
)


def plan_with_side_tensors(plan: Plan) -> Plan:
    """The plan with nothing but its first cell whose layers have all of them."""
    for cell in plan.cells:
        spec = find_architecture(cell.model)
        if spec.per_layer_input and spec.shared_states:
            return dataclasses.replace(plan, cells=(cell,))
    raise LookupError("no cell of a family with side tensors")
