"""A cell of the gate, put together by the product: its model on the ring, and what trains it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poros.measure.streaming_proof import proof, state_proof
from poros.training.host_adamw import HostAdamW
from poros.training.optimizer import Params
from poros.training.streamed_model import StreamedModel


@dataclass(kw_only=True)
class StreamedCell(StreamedModel):
    """A cell's model on the ring, with what it is trained by."""

    params: Params
    optimizer: HostAdamW
    accumulation: int
    first_proved_step: int = 0

    def prove_from(self, step: int) -> None:
        """Leave out of the proof what was before a step: from there on, another plan holds."""
        self.first_proved_step = step
        self.manager.num_copies = self.optimizer.num_stores = 0

    def proof(self, num_steps: int) -> dict[str, Any]:
        """Of what has been streamed in `num_steps` from the first one."""
        num_steps -= self.first_proved_step
        num_passes = num_steps * self.accumulation
        return proof(
            self.base.layers,
            self.manager,
            num_blocks=len(self.base.blocks),
            num_passes=num_passes,
            ends=self.ends.away(),
            visitor=self.head.visitor if self.head is not None else None,
            state=state_proof(self.optimizer, num_steps, num_passes),
            boundaries=self.attachment.boundaries,
        )
