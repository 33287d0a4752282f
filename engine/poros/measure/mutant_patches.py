"""How each mutant breaks the product: context managers that patch it and put it back.

They reach into private parts on purpose. When one no longer finds what it breaks, the gate goes
red, and the patch has to follow the code.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from poros.data.batches import Batch
from poros.measure.disturbances import CopyFailedError
from poros.measure.mutant_bench import Bench
from poros.streaming import ambient, attach, block_function
from poros.streaming.block import Block
from poros.streaming.block_manager import BlockManager
from poros.streaming.device_slots import Slot


@contextlib.contextmanager
def nothing(bench: Bench) -> Iterator[None]:
    """Break nothing in the product: the mutant is in what is compared."""
    del bench
    yield


@contextlib.contextmanager
def forwards_own_graph(bench: Bench) -> Iterator[None]:
    """Bind, call the layer, keep its graph: nothing is bound again in backward."""

    def plain_call(streamed: Any, drop: Any, args: Any, kwargs: Any) -> Any:
        streamed.manager.bind(streamed.block_index)
        return streamed.forward(*args, **kwargs)

    point_at = Block.point_at

    def never_away(block: Block, buffer: Tensor | None) -> None:
        if buffer is not None:
            point_at(block, buffer)

    try:
        with (
            mock.patch.object(attach, "call_streamed", plain_call),
            mock.patch.object(Block, "point_at", never_away),
        ):
            yield
    finally:
        _point_away(bench)


def _point_away(bench: Bench) -> None:
    for block in bench.streamed.base.blocks:
        block.point_at(None)


@contextlib.contextmanager
def random_state_kept(bench: Bench) -> Iterator[None]:
    """The recompute draws on from where the forward ended."""
    with _options(bench, preserve_rng=False):
        yield


@contextlib.contextmanager
def random_state_not_put_back(bench: Bench) -> Iterator[None]:
    """The recompute's draws are right, but the next forward's repeat them."""

    @contextlib.contextmanager
    def one_way(state: Any, device: torch.device) -> Iterator[None]:
        state.restore(device)
        yield

    with mock.patch.object(block_function, "random_state_restored", one_way):
        yield


@contextlib.contextmanager
def cache_kept(bench: Bench) -> Iterator[None]:
    """The layer writes its keys and values twice."""
    with _options(bench, drop=lambda _: False):
        yield


@contextlib.contextmanager
def _options(bench: Bench, **options: Any) -> Iterator[None]:
    bench.attach_options = options
    try:
        yield
    finally:
        bench.attach_options = {}


def _captured(**changes: Callable[[], Any]) -> Callable[[Bench], Any]:
    """A patch that replaces parts of the captured surroundings when they are entered again."""

    @contextlib.contextmanager
    def patch(bench: Bench) -> Iterator[None]:
        entered = ambient.Ambient.entered

        def other(self: ambient.Ambient, layer: torch.nn.Module) -> Any:
            now = {name: value() for name, value in changes.items()}
            if "training" in now:
                now["training"] = tuple(module.training for module in layer.modules())
            return entered(dataclasses.replace(self, **now), layer)

        with mock.patch.object(ambient.Ambient, "entered", other):
            yield

    return patch


autocast_not_entered = _captured(autocasts=tuple)
training_not_restored = _captured(training=tuple)
attention_not_restored = _captured(sdpa=ambient._sdpa_flags)


@contextlib.contextmanager
def forward_without_grad(bench: Bench) -> Iterator[None]:
    """Each first run of a visit is without grad, as activation checkpointing does it."""
    run = block_function.Visit.run

    def first_without_grad(visit: block_function.Visit, tensors: Any) -> list[Any]:
        if visit.output_spec is not None:
            return run(visit, tensors)
        with mock.patch.object(torch, "enable_grad", torch.no_grad):
            flat = run(visit, tensors)
        return [
            leaf.requires_grad_() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
            for leaf in flat
        ]

    with mock.patch.object(block_function.Visit, "run", first_without_grad):
        yield


def _copying(direction: int | None) -> Callable[[Bench], Any]:
    """A patch under which the middle block gets the next one's bytes, in one direction only."""

    @contextlib.contextmanager
    def patch(bench: Bench) -> Iterator[None]:
        middle, heading = bench.num_layers // 2, {"direction": 1}
        blocks = bench.streamed.base.blocks
        bind, load = BlockManager.bind, BlockManager._load

        def noting(self: BlockManager, index: int, **where: Any) -> None:
            heading["direction"] = where.get("direction", 1)
            bind(self, index, **where)

        def wrong(self: BlockManager, index: int, **keep: Any) -> Any:
            known = any(slot.holds == index for slot in self._slots)
            slot = load(self, index, **keep)
            if index == middle and not known and heading["direction"] == direction:
                _overwrite(self, slot, blocks[middle + 1])
            return slot

        with (
            mock.patch.object(BlockManager, "bind", noting),
            mock.patch.object(BlockManager, "_load", wrong),
        ):
            yield

    return patch


wrong_bytes_forward = _copying(1)
wrong_bytes_backward = _copying(-1)


@contextlib.contextmanager
def freed_before_forward(bench: Bench) -> Iterator[None]:
    """The middle block's slot already holds another block when the layer runs."""
    middle, blocks, bind = bench.num_layers // 2, bench.streamed.base.blocks, BlockManager.bind

    def early(self: BlockManager, index: int, **where: Any) -> None:
        bind(self, index, **where)
        if index == middle and self._bound is not None:
            _overwrite(self, self._bound, blocks[middle + 1])

    with mock.patch.object(BlockManager, "bind", early):
        yield


@contextlib.contextmanager
def freed_before_backward(bench: Bench) -> Iterator[None]:
    """The middle block's slot is overwritten between its recompute and its backward."""
    middle, blocks = bench.num_layers // 2, bench.streamed.base.blocks
    gradients = block_function._gradients

    def late(*arguments: Any) -> Any:
        manager = bench.streamed.manager
        slot = manager._bound
        if slot is not None and slot.holds == middle:
            _overwrite(manager, slot, blocks[middle + 1])
        return gradients(*arguments)

    with mock.patch.object(block_function, "_gradients", late):
        yield


@contextlib.contextmanager
def written_outside(bench: Bench) -> Iterator[None]:
    """Between two steps something else uses the slots, and the ring is not told."""

    def use_slots(step: int) -> None:
        manager = bench.streamed.manager
        for slot in manager._slots:
            _overwrite(manager, slot, bench.streamed.base.blocks[-1])

    bench.between_steps = use_slots
    try:
        yield
    finally:
        bench.between_steps = lambda _: None


def _overwrite(manager: BlockManager, slot: Slot, block: Block) -> None:
    """Put another block's bytes into a slot: after its own copy, which would land on top."""
    manager._lane.wait(slot)
    slot.buffer[: block.num_bytes].copy_(block.host)


@contextlib.contextmanager
def claimed_before_copied(bench: Bench) -> Iterator[None]:
    """A slot whose copy fails says that it holds the block."""
    del bench
    load = BlockManager._load

    def hasty(self: BlockManager, index: int, **keep: Any) -> Any:
        held = [slot.holds for slot in self._slots]
        try:
            return load(self, index, **keep)
        except CopyFailedError:
            for slot, before in zip(self._slots, held, strict=True):
                slot.holds = index if slot.holds != before else before
            raise

    with mock.patch.object(BlockManager, "_load", hasty):
        yield


@contextlib.contextmanager
def stands_in_once(bench: Bench) -> Iterator[None]:
    """A weight that hangs under two names has a stand-in under the first alone."""
    del bench
    trainable = block_function._trainable

    def first_places(layer: torch.nn.Module) -> block_function.Adapters:
        return {weight: places[:1] for weight, places in trainable(layer).items()}

    with mock.patch.object(block_function, "_trainable", first_places):
        yield


@contextlib.contextmanager
def reversed_order(bench: Bench) -> Iterator[None]:
    """The step's micro-batches the other way round."""

    def turned(batches: list[Batch]) -> list[Batch]:
        return batches[::-1]

    bench.batch_order = turned
    try:
        yield
    finally:
        bench.batch_order = lambda batches: batches


@contextlib.contextmanager
def clip_left_out(bench: Bench) -> Iterator[None]:
    """Gradients go to the optimizer as they are."""
    cell = bench.cell
    bench.cell = dataclasses.replace(cell, max_grad_norm=1e9)
    try:
        yield
    finally:
        bench.cell = cell


@contextlib.contextmanager
def other_epsilon(bench: Bench) -> Iterator[None]:
    """Adam's epsilon ten times as large."""

    def change(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["eps"] = 1e-7

    bench.optimizer_made = change
    try:
        yield
    finally:
        bench.optimizer_made = lambda _: None


@contextlib.contextmanager
def normalised_per_micro_batch(bench: Bench) -> Iterator[None]:
    """Each micro-batch's loss is a mean of its own."""

    def own_mean(module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        kwargs["num_items_in_batch"] = int((kwargs["labels"][:, 1:] != -100).sum())
        return args, kwargs

    handle = bench.streamed.model.register_forward_pre_hook(own_mean, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def resident_base(bench: Bench) -> Iterator[None]:
    """The whole base lies on the device; equal bits would prove nothing about streaming."""
    device = bench.streamed.device
    buffers = [block.host.to(device, copy=True) for block in bench.streamed.base.blocks]

    def bind(self: BlockManager, index: int, **_: Any) -> None:
        self._blocks[index].point_at(buffers[index])

    try:
        with mock.patch.object(BlockManager, "bind", bind):
            yield
    finally:
        _point_away(bench)


def _resumed(change: Callable[[torch.optim.Optimizer], None]) -> Callable[[Bench], Any]:
    """A patch that changes something right after a checkpoint was loaded."""

    @contextlib.contextmanager
    def patch(bench: Bench) -> Iterator[None]:
        bench.resumed = change
        try:
            yield
        finally:
            bench.resumed = lambda _: None

    return patch


def _first_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state: dict[str, Tensor] = optimizer.state[optimizer.param_groups[0]["params"][0]]
    return state


def _lose_moment(optimizer: torch.optim.Optimizer) -> None:
    _first_state(optimizer)["exp_avg"].zero_()


def _reset_count(optimizer: torch.optim.Optimizer) -> None:
    _first_state(optimizer)["step"].zero_()


def _draw(optimizer: torch.optim.Optimizer) -> None:
    torch.rand(1, device=optimizer.param_groups[0]["params"][0].device)


moment_lost = _resumed(_lose_moment)
step_count_lost = _resumed(_reset_count)
drawn_once_more = _resumed(_draw)


@contextlib.contextmanager
def one_batch_late(bench: Bench) -> Iterator[None]:
    """The cursor stands one step further."""
    bench.batches_skipped = 1
    try:
        yield
    finally:
        bench.batches_skipped = 0
