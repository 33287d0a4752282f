"""Rings of what training changes: weights and moments that are written back, sums of gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from poros.streaming.block import Block
from poros.streaming.block_manager import BlockManager
from poros.streaming.device_slots import Slot
from poros.streaming.return_lane import ReturnLane


class StateRing(BlockManager):
    """A ring whose blocks are changed in their slots; `store` sends the bound one home.

    A slot goes on holding what was stored from it, so the next `bind` of that block needs no copy.
    """

    def __init__(self, blocks: Sequence[Block], *, device: torch.device, lane: ReturnLane) -> None:
        """Allocate two slots."""
        super().__init__(blocks, device=device, lane=lane)
        self._return_lane = lane
        self.num_stores = 0
        self.stored_bytes = 0

    def store(self) -> None:
        """Queue the way home of the bound block as the kernels queued so far leave it."""
        assert self._bound is not None
        assert self._bound.holds is not None
        block = self._blocks[self._bound.holds]
        self._return_lane.store(self._bound, block.host)
        self.num_stores += 1
        self.stored_bytes += block.num_bytes


class GradientRing(StateRing):
    """Sums that start in a slot: a block is loaded only if a former visit of this step stored it.

    Args:
        blocks: As in `BlockManager`.
        device: As in `BlockManager`.
        lane: As in `StateRing`.
        leaving: Called with a block's index before its changed sums go home.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        device: torch.device,
        lane: ReturnLane,
        leaving: Callable[[int], None],
    ) -> None:
        """Allocate the slots; no sum has begun."""
        super().__init__(blocks, device=device, lane=lane)
        self._leaving = leaving
        self._begun: set[int] = set()
        self._changed = False

    def changed(self) -> None:
        """Say that the bound block's sums were changed."""
        assert self._bound is not None
        assert self._bound.holds is not None
        self._begun.add(self._bound.holds)
        self._changed = True

    def adopt(self, index: int) -> None:
        """Say that the host has a sum of the block's."""
        self._begun.add(index)

    def leave(self) -> None:
        """Send the bound block's sums home if they were changed; it stays bound."""
        if self._changed and self._bound is not None and self._bound.holds is not None:
            self._changed = False
            self._leaving(self._bound.holds)
            self.store()

    def clear(self) -> None:
        """Begin all sums anew."""
        self._changed = False
        self._begun.clear()
        self.forget()

    def _fill(self, slot: Slot, index: int) -> None:
        if index in self._begun:
            super()._fill(slot, index)
        else:
            self._return_lane.claim(slot)

    def _release(self) -> None:
        self.leave()
        super()._release()
