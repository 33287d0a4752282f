"""Memory that runs out in the middle of a step, on purpose.

It is the recompute of a middle layer in the step's last micro-batch that fails: gradients are half
there, and dropout has been drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from poros.measure.cell_files import silent
from poros.measure.plan import Cell
from poros.measure.streamed_cell import StreamedCell
from poros.streaming.shortage import MakeRoom, Shortage
from poros.training.placement import Placement


@contextlib.contextmanager
def running_out(layers: Sequence[nn.Module], accumulation: int) -> Iterator[None]:
    """In the first step made inside, memory runs out once.

    Args:
        layers: The model's, with adapters.
        accumulation: Micro-batches of a step.
    """
    layer = layers[len(layers) // 2]
    module = next(module for module in layer.modules() if isinstance(module, LoraLayer))
    num_calls = 0

    def fail(*_: Any) -> None:
        nonlocal num_calls
        num_calls += 1  # a forward and a recompute for each micro-batch
        if num_calls == 2 * accumulation:
            raise torch.OutOfMemoryError("out of memory on purpose")

    handle = module.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


def to_the_smallest(streamed: StreamedCell, cell: Cell, step: int) -> MakeRoom:
    """Makes room in a step, from 0, by moving all that can move to the host, rung by rung."""

    def make_room(shortage: Shortage) -> None:
        assert shortage.phase == "backward", shortage
        placement = Placement.of(
            streamed,
            streamed.optimizer,
            emit=silent,
            num_chunk_rows=cell.loss_chunk_rows,
        )
        while placement.shrink() is not None:
            pass
        streamed.head = placement.head
        streamed.prove_from(step)

    return make_room


def nothing_to_move(shortage: Shortage) -> None:
    """Make no room: what failed on purpose has memory enough when it is made again."""
    assert shortage.phase == "backward", shortage


def with_shortage(cell: Cell) -> Cell:
    """The cell with a step whose memory runs out; it goes on from there."""
    return dataclasses.replace(cell, runs_out_at=cell.num_steps // 2)
