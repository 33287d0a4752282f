"""What may happen around a step and must change no bit: the mutants' runs, and their controls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from poros.measure.running_out import running_out
from poros.measure.streamed_cell import StreamedCell
from poros.streaming import ambient
from poros.streaming.device_slots import Slot
from poros.training.lora import trainable_params


class CopyFailedError(Exception):
    """A copy into a slot did not take place."""


@contextlib.contextmanager
def disturbed(streamed: StreamedCell, what: str | None) -> Iterator[None]:
    """Run steps under a disturbance by its name; None: under none."""
    with _DISTURBANCES[what](streamed) if what else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _changed_for_backward(
    streamed: StreamedCell, change: Callable[[], object], put_back: Callable[[], object]
) -> Iterator[None]:
    """Change the surroundings after every forward and back before the next one."""

    def before(*_: Any) -> None:
        put_back()

    def after(*_: Any) -> None:
        change()

    model = streamed.model
    handles = [model.register_forward_pre_hook(before), model.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        put_back()


def _eval(streamed: StreamedCell) -> Any:
    model = streamed.model
    return _changed_for_backward(streamed, model.eval, model.train)


def _math(streamed: StreamedCell) -> Any:
    """Other attention kernels: of all that there are, only the plain ones."""
    now, only_math = ambient._sdpa_flags(), (False, False, True, False)
    return _changed_for_backward(
        streamed,
        lambda: ambient._set_sdpa_flags(only_math),
        lambda: ambient._set_sdpa_flags(now),
    )


@contextlib.contextmanager
def _failing_copy(streamed: StreamedCell) -> Iterator[None]:
    """The second copy of block 1, on the first way back, fails once; who retries finds it mended.

    Only there would the retry use the slot: its forward begins with blocks 0 and 1.
    """
    lane: Any = streamed.manager._lane
    copy, wanted = lane.copy, streamed.base.blocks[1].host
    num_copies = 0

    def failing(slot: Slot, host: Tensor) -> None:
        nonlocal num_copies
        is_wanted = host.data_ptr() == wanted.data_ptr()
        num_copies += is_wanted
        if is_wanted and num_copies == 2:
            raise CopyFailedError
        copy(slot, host)

    lane.copy = failing
    try:
        yield
    finally:
        del lane.copy


@contextlib.contextmanager
def _tied(streamed: StreamedCell) -> Iterator[None]:
    """Two linears of the middle layer have one lora_A."""
    layer = streamed.base.layers[len(streamed.base.layers) // 2]
    holders: list[nn.Module] = [
        module.lora_A["default"] for module in layer.modules() if isinstance(module, LoraLayer)
    ]
    first, second = next(
        pair for pair in combinations(holders, 2) if pair[0].weight.shape == pair[1].weight.shape
    )
    own, params = second.weight, streamed.params
    second.weight = first.weight
    streamed.params = trainable_params(streamed.model)
    try:
        yield
    finally:
        second.weight, streamed.params = own, params


def _running_out(streamed: StreamedCell) -> Any:
    return running_out(streamed.base.layers, streamed.accumulation)


_DISTURBANCES: dict[str, Callable[[StreamedCell], Any]] = {
    "eval": _eval,
    "math": _math,
    "copy": _failing_copy,
    "tied": _tied,
    "memory": _running_out,
}
