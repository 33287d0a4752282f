"""Mutants of hidden states on the host: the middle layer's recompute begins with other ones.

The loss is right, and so are the layers above; below, every gradient has gone through the mistake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from torch import Tensor

from poros.measure.mutant_bench import Bench, Mutant, Setting
from poros.streaming.boundaries import Boundaries, Boundary
from poros.streaming.device_slots import Slot

BOUNDARIES_ON_HOST = Setting(on_host="boundaries")

LOSSES = r"^loss\."
FIRST_GRAD = r"^grad\..*layers\.0\."
ABOVE = r"^grad\..*layers\.{above_middle}\."
BELOW = r"^grad\..*layers\.{below_middle}\."
MIDDLE = r"^grad\..*layers\.{middle}\."


class _Numbered:
    """Says which of a pass's boundaries one is: they leave in the order of the layers."""

    def __init__(self, bench: Bench) -> None:
        self._num_layers, self._init = bench.num_layers, Boundary.__init__
        self._layers: dict[int, int] = {}

    def patch(self) -> Any:
        def noting(boundary: Boundary, owner: Boundaries, *rest: Any) -> None:
            self._layers[id(boundary)] = owner.num_stores % self._num_layers
            self._init(boundary, owner, *rest)

        return mock.patch.object(Boundary, "__init__", noting)

    def is_middle(self, boundary: Boundary) -> bool:
        return self._layers[id(boundary)] == self._num_layers // 2


def _put(owner: Boundaries, slot: Slot, host: Tensor) -> None:
    """Bytes into a slot after its own copy; of another length, as many as there are."""
    owner.lane.wait(slot)
    num_bytes = min(slot.buffer.numel(), host.numel())
    slot.buffer[:num_bytes].copy_(host[:num_bytes])


@contextlib.contextmanager
def neighbours_boundary(bench: Bench) -> Iterator[None]:
    """The hidden states of the layer before come back."""
    bring, numbered = Boundaries.bring, _Numbered(bench)

    def wrong(owner: Boundaries, boundary: Boundary) -> Slot:
        slot = bring(owner, boundary)
        if numbered.is_middle(boundary):
            assert boundary._before is not None
            other = boundary._before()
            assert other is not None
            _put(owner, slot, other.host)
        return slot

    with numbered.patch(), mock.patch.object(Boundaries, "bring", wrong):
        yield


@contextlib.contextmanager
def former_micro_batch(bench: Bench) -> Iterator[None]:
    """They come back before they have reached the buffer: those of the micro-batch before."""
    bring, numbered = Boundaries.bring, _Numbered(bench)
    former: list[Tensor] = []

    def early(owner: Boundaries, boundary: Boundary) -> Slot:
        slot = bring(owner, boundary)
        if numbered.is_middle(boundary):
            mine = boundary.host.clone()
            if former:
                _put(owner, slot, former.pop())
            former.append(mine)
        return slot

    with numbered.patch(), mock.patch.object(Boundaries, "bring", early):
        yield


@contextlib.contextmanager
def given_to_the_next(bench: Bench) -> Iterator[None]:
    """The buffer is given to the next layer while its own waits for the backward."""
    leaving, take_back, numbered = Boundaries.leaving, Boundaries.take_back, _Numbered(bench)

    @contextlib.contextmanager
    def hasty(owner: Boundaries, hidden: Tensor) -> Iterator[Boundary | None]:
        with leaving(owner, hidden) as boundary:
            yield boundary
        if boundary is not None and numbered.is_middle(boundary):
            owner._free[:] = [boundary._buffer]

    def once(owner: Boundaries, buffer: Any) -> None:
        if buffer not in owner._free:
            take_back(owner, buffer)

    with (
        numbered.patch(),
        mock.patch.object(Boundaries, "leaving", hasty),
        mock.patch.object(Boundaries, "take_back", once),
    ):
        yield


_WRONG_FROM_THE_MIDDLE: dict[str, Any] = {
    "first": FIRST_GRAD, "equal": (LOSSES, ABOVE), "differ": (BELOW, MIDDLE),
}  # fmt: skip

BOUNDARY_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "hidden states of another layer come back", neighbours_boundary, BOUNDARIES_ON_HOST,
        **_WRONG_FROM_THE_MIDDLE,
    ),
    Mutant(
        "hidden states of the former micro-batch come back", former_micro_batch,
        BOUNDARIES_ON_HOST, **_WRONG_FROM_THE_MIDDLE,
    ),
    Mutant(
        "hidden states overwritten by the next ones", given_to_the_next, BOUNDARIES_ON_HOST,
        **_WRONG_FROM_THE_MIDDLE,
    ),
)  # fmt: skip
