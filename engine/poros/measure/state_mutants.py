"""Mutants of the optimizer's state on the host: each breaks the way of one block's bytes.

The middle block is the one that goes wrong: it has left its slot when anybody reads what it left
on the host, and it comes and goes while its neighbours do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from torch import Tensor, nn

from poros.measure.mutant_bench import Bench, Mutant, Setting
from poros.streaming.block import Block
from poros.streaming.device_slots import Slot
from poros.streaming.state_ring import GradientRing, StateRing
from poros.streaming.travelling import TravellingAdapters
from poros.training.host_adamw import HostAdamW

MOMENTS_ON_HOST = Setting(on_host="moments")
ADAPTERS_ON_HOST = Setting(on_host="adapters")

LOSSES = r"^loss\."
GRADS = r"^grad\."
MIDDLE = r"layers\.{middle}\."
OTHERS = r"layers\.({not_middle})\."

Patch = Callable[[Bench], contextlib.AbstractContextManager[None]]


def _moments(bench: Bench) -> list[Block]:
    optimizer = bench.streamed.optimizer
    assert isinstance(optimizer, HostAdamW)
    return optimizer.moments


@contextlib.contextmanager
def moments_swapped(bench: Bench) -> Iterator[None]:
    """The middle block steps with the moments of the one before it."""
    fill = StateRing._fill

    def wrong(ring: StateRing, slot: Slot, index: int) -> None:
        swapped = ring._blocks is _moments(bench) and index == bench.num_layers // 2
        fill(ring, slot, index - 1 if swapped else index)

    with mock.patch.object(StateRing, "_fill", wrong):
        yield


def _store_lost(blocks_of: Callable[[Bench], list[Block]]) -> Patch:
    """A patch under which what the middle block became in its slot never reaches the host."""

    @contextlib.contextmanager
    def patch(bench: Bench) -> Iterator[None]:
        store = StateRing.store

        def lossy(ring: StateRing) -> None:
            bound = ring._bound
            assert bound is not None
            if ring._blocks is blocks_of(bench) and bound.holds == bench.num_layers // 2:
                ring.num_stores += 1  # so that only the bytes tell
            else:
                store(ring)

        with mock.patch.object(StateRing, "store", lossy):
            yield

    return patch


def _travelling(bench: Bench) -> TravellingAdapters:
    optimizer = bench.streamed.optimizer
    assert isinstance(optimizer, HostAdamW)
    assert optimizer.travelling is not None
    return optimizer.travelling


@contextlib.contextmanager
def stale_moment(bench: Bench) -> Iterator[None]:
    """The middle block's moments are brought in as they were a step ago: nobody waited."""
    fill = StateRing._fill
    former: dict[str, Tensor] = {}

    def early(ring: StateRing, slot: Slot, index: int) -> None:
        fill(ring, slot, index)
        if ring._blocks is not _moments(bench) or index != bench.num_layers // 2:
            return
        ring._lane.wait(slot)
        arrived = slot.buffer.clone()
        if "moments" in former:
            slot.buffer.copy_(former["moments"])
        former["moments"] = arrived

    with mock.patch.object(StateRing, "_fill", early):
        yield


@contextlib.contextmanager
def norm_of_first_micro_batch(bench: Bench) -> Iterator[None]:
    """The middle block's norms are those of its first visit: not yet of the whole sum."""
    take = TravellingAdapters._take_norms
    visited: set[int] = set()

    def once(travelling: TravellingAdapters, index: int) -> None:
        if index != bench.num_layers // 2 or index not in visited:
            take(travelling, index)
        visited.add(index)

    clear = TravellingAdapters.clear

    def cleared(travelling: TravellingAdapters) -> None:
        visited.clear()
        clear(travelling)

    with (
        mock.patch.object(TravellingAdapters, "_take_norms", once),
        mock.patch.object(TravellingAdapters, "clear", cleared),
    ):
        yield


@contextlib.contextmanager
def neighbours_norm(bench: Bench) -> Iterator[None]:
    """The middle block's norms are taken over the sums of the block after it."""
    take = TravellingAdapters._take_norms

    def wrong(travelling: TravellingAdapters, index: int) -> None:
        take(travelling, index)
        if index == bench.num_layers // 2:
            groups, norms = travelling._groups, travelling._norms
            pairs = zip(groups[index], groups[index + 1], strict=True)
            norms.update({weight: norms[other] for (_, weight), (_, other) in pairs})

    with mock.patch.object(TravellingAdapters, "_take_norms", wrong):
        yield


@contextlib.contextmanager
def former_sum_lost(bench: Bench) -> Iterator[None]:
    """The middle block's gradients are assigned by every micro-batch."""
    add = TravellingAdapters._add

    def assigned(travelling: TravellingAdapters, gradients: dict[nn.Parameter, Tensor]) -> None:
        middle = bench.num_layers // 2
        mine = {w for w in gradients if travelling._places[w][0] == middle}
        travelling._given -= mine
        add(travelling, gradients)

    with mock.patch.object(TravellingAdapters, "_add", assigned):
        yield


@contextlib.contextmanager
def sum_not_brought_back(bench: Bench) -> Iterator[None]:
    """A later micro-batch adds to whatever the slot held."""
    fill = GradientRing._fill

    def claimed(ring: GradientRing, slot: Slot, index: int) -> None:
        if index == bench.num_layers // 2 and index in ring._begun:
            ring._return_lane.claim(slot)
            ring._lane.wait(slot)
            slot.buffer.zero_()
        else:
            fill(ring, slot, index)

    with mock.patch.object(GradientRing, "_fill", claimed):
        yield


@contextlib.contextmanager
def stale_weights(bench: Bench) -> Iterator[None]:
    """The next forward has the middle block's weights of before the step."""
    fill = StateRing._fill
    first = {
        weight: value.clone()
        for (_, weight), value in zip(bench.streamed.params, bench.first_values, strict=True)
    }

    def early(ring: StateRing, slot: Slot, index: int) -> None:
        fill(ring, slot, index)
        travelling = _travelling(bench)
        if ring is travelling.weights and index == bench.num_layers // 2:
            ring._lane.wait(slot)
            places = travelling.host_blocks[0][index].places
            with torch.no_grad():
                for place, (_, weight) in zip(places, travelling._groups[index], strict=True):
                    place.view(slot.buffer).copy_(first[weight])

    with mock.patch.object(StateRing, "_fill", early):
        yield


STATE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "moments of two blocks swapped", moments_swapped, MOMENTS_ON_HOST, step=2,
        first=r"^adapter\..*" + MIDDLE,
        equal=(LOSSES, GRADS, "^grad_norm$", r"^(adapter|exp_avg|exp_avg_sq)\..*" + OTHERS),
        differ=(r"^exp_avg\..*" + MIDDLE, r"^exp_avg_sq\..*" + MIDDLE),
    ),
    Mutant(
        "stepped moments not written back", _store_lost(_moments), MOMENTS_ON_HOST,
        first=r"^exp_avg\..*" + MIDDLE,
        equal=(LOSSES, GRADS, "^grad_norm$", r"^adapter\.", r"^exp_avg\..*" + OTHERS),
        differ=(r"^exp_avg\..*" + MIDDLE, r"^exp_avg_sq\..*" + MIDDLE),
    ),
    Mutant(
        "step with the moments of the step before", stale_moment, MOMENTS_ON_HOST, step=2,
        first=r"^adapter\..*" + MIDDLE,
        equal=(LOSSES, GRADS, "^grad_norm$", r"^(adapter|exp_avg|exp_avg_sq)\..*" + OTHERS),
        differ=(r"^exp_avg\..*" + MIDDLE,),
    ),
    Mutant(
        "norm over another block's gradients", neighbours_norm, ADAPTERS_ON_HOST,
        first="^grad_norm$", equal=(LOSSES, GRADS), differ=("^grad_norm$",),
    ),
    Mutant(
        "norm taken before the last micro-batch", norm_of_first_micro_batch, ADAPTERS_ON_HOST,
        first="^grad_norm$", equal=(LOSSES, GRADS), differ=("^grad_norm$",),
    ),
    Mutant(
        "gradient assigned where it is to be added", former_sum_lost, ADAPTERS_ON_HOST,
        first=r"^grad\..*" + MIDDLE, equal=(LOSSES, r"^grad\..*" + OTHERS),
        differ=(r"^grad\..*" + MIDDLE, "^grad_norm$"),
    ),
    Mutant(
        "former sum of gradients not brought back", sum_not_brought_back, ADAPTERS_ON_HOST,
        first=r"^grad\..*" + MIDDLE, equal=(LOSSES, r"^grad\..*" + OTHERS),
        differ=(r"^grad\..*" + MIDDLE, "^grad_norm$"),
    ),
    Mutant(
        "stepped weights not written back",
        _store_lost(lambda bench: _travelling(bench).host_blocks[0]), ADAPTERS_ON_HOST,
        first=r"^adapter\..*" + MIDDLE,
        equal=(LOSSES, GRADS, "^grad_norm$", r"^exp_avg", r"^adapter\..*" + OTHERS),
        differ=(r"^adapter\..*" + MIDDLE,),
    ),
    Mutant(
        "forward with the weights of before the step", stale_weights, ADAPTERS_ON_HOST, step=2,
        first=r"^loss\.0",
    ),
)  # fmt: skip
