"""Where a run's tensors are, and their way to a smaller plan while it goes on.

Every part changes in place, so whoever knows the ring or the optimizer goes on knowing it. It
happens between two attempts: no graph is alive, and gradients are either none (a step that is made
again) or whole (an optimizer's step that goes on).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from poros.errors import PorosOOMError
from poros.events import Event
from poros.memory_answers import without_training
from poros.memory_plan import FEWEST_SLOTS, MemoryPlan, smaller
from poros.memory_planner import rungs, smallest
from poros.streaming.attach import Attachment
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import boundaries_of
from poros.streaming.shortage import Shortage, free, is_shortage, let_go, shortage_of
from poros.training.host_adamw import HostAdamW
from poros.training.host_ends import HostEnds
from poros.training.streamed_head import StreamedHead
from poros.training.streamed_model import StreamedModel


@dataclass(kw_only=True)
class Placement:
    """The parts of a run whose tensors can lie on the host.

    Attributes:
        plan: What is in force, with the slots that there are; two count where none is needed yet.
        model: transformers' model.
        manager: The ring.
        attachment: The layers on it.
        ends: Head and embeddings.
        head: The head's part in the model's forward, if it is on the host.
        optimizer: Moments, adapters, gradients; None: nothing is trained, and they stay.
        device: Where the model computes.
        emit: Is told of a head that has to stay.
        num_chunk_rows: Of the loss, once the head is on the host; None: by memory.
        half_moved: Memory ended while a smaller plan was taken, for good: no step can be made.
        way_out: What to say then.
    """

    plan: MemoryPlan
    model: PreTrainedModel
    manager: BlockManager
    attachment: Attachment
    ends: HostEnds
    head: StreamedHead | None
    optimizer: HostAdamW | None
    device: torch.device
    emit: Callable[[Event], None]
    num_chunk_rows: int | None = None
    half_moved: bool = False
    way_out: str = "set vram_budget: min (same bits) and start again"

    def __post_init__(self) -> None:
        """Know how many slots there are: a short model has fewer than a plan allows."""
        num_slots = max(self.manager.num_slots, FEWEST_SLOTS)
        self.plan = dataclasses.replace(self.plan, num_slots=num_slots)

    @classmethod
    def of(
        cls,
        streamed: StreamedModel,
        optimizer: HostAdamW | None,
        *,
        emit: Callable[[Event], None],
        num_chunk_rows: int | None = None,
    ) -> Placement:
        """Of a model that was put together, and the optimizer of its adapters, if there is one."""
        return cls(
            plan=streamed.plan,
            model=streamed.base.model,
            manager=streamed.manager,
            attachment=streamed.attachment,
            ends=streamed.ends,
            head=streamed.head,
            optimizer=optimizer,
            device=streamed.device,
            emit=emit,
            num_chunk_rows=num_chunk_rows,
        )

    def shrink(self) -> MemoryPlan | None:
        """Take the next smaller plan; None: there is none, and nothing was changed.

        The slots of what begins to travel take memory too. If there is none, what was moved so far
        stays on the host and a still smaller plan is taken, the smallest one twice.

        Raises:
            PorosOOMError: There is too little memory even for its slots.
        """
        below = smaller(self.plan)
        while below is not None and self._frees_nothing(below):
            below = smaller(below)
        if below is None:
            return None
        for plan in map(self._meant, (*rungs(below), smallest(below))):
            shortage = self._taken(plan)
            if shortage is None:
                return plan
        self.half_moved = True
        assert shortage is not None
        raise PorosOOMError(
            f"{shortage.reason}: not even room for what travels",
            where="while a smaller plan was taken",
            remediation=self.way_out,
            setting="vram_budget: min",
            **shortage.sizes(),
        )

    def _taken(self, plan: MemoryPlan) -> Shortage | None:
        """Take a plan; what was short, if that is why it could not be."""
        try:
            self.take(plan)
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            shortage = shortage_of(error, phase="step", device=self.device)
            let_go(error)
        else:
            return None
        free(self.device)
        return shortage

    def take(self, plan: MemoryPlan) -> None:
        """Move what the plan has on the host and is not there yet; give up slots and places."""
        self.rest()
        self.manager.shrink(num_slots=plan.num_slots, resident=plan.resident)
        if not plan.head_prefetch:
            self.manager.when_idle = _nothing
        if self.attachment.boundaries is None:
            boundaries = boundaries_of(plan, self.manager, self.device)
            if boundaries is not None:
                self.attachment.keep_on_host(boundaries)
        self.ends.take(self.model, plan)
        if plan.head_on_host and not self.plan.head_on_host:
            self.head = self.ends.attach(
                self.model,
                self.manager,
                prefetch=plan.head_prefetch,
                emit=self.emit,
                num_chunk_rows=self.num_chunk_rows,
            )
        # So far it is in force, whatever becomes of the rest.
        self.plan = dataclasses.replace(
            plan,
            moments_on_host=self.plan.moments_on_host,
            adapters_on_host=self.plan.adapters_on_host,
        )
        if self.optimizer is not None and plan.moments_on_host:
            self.optimizer.send_moments()
        if self.optimizer is not None and plan.adapters_on_host:
            self.optimizer.send_adapters()
            self.attachment.travel(self.optimizer.travelling)
        self.plan = plan
        free(self.device)

    def _frees_nothing(self, below: MemoryPlan) -> bool:
        """Whether a rung is only about visits of a head that makes none, or about training."""
        above, below = self._meant(self.plan), self._meant(below)
        if not above.head_on_host:
            above = dataclasses.replace(above, head_prefetch=below.head_prefetch)
        return below == above

    def _meant(self, plan: MemoryPlan) -> MemoryPlan:
        return without_training(plan) if self.optimizer is None else plan

    def rest(self) -> None:
        """Have no block and no head on the device: the next pass brings them again."""
        self.manager.forget()
        if self.head is not None:
            self.head.visitor.leave()


def _nothing() -> None:
    """The head comes when it is asked for."""


def in_words(above: MemoryPlan, below: MemoryPlan) -> str:
    """What the smaller of two plans does otherwise, as ``head to the host``."""
    said = []
    if len(below.resident) < len(above.resident):
        said.append(f"{len(below.resident)} resident blocks instead of {len(above.resident)}")
    if below.num_slots < above.num_slots:
        said.append(f"{below.num_slots} slots instead of {above.num_slots}")
    groups = ("boundaries", "head", "embeddings", "moments", "adapters")
    fields = {group: f"{group}_on_host" for group in groups}
    moved = [g for g, field in fields.items() if getattr(below, field) > getattr(above, field)]
    if moved:
        said.append(f"{', '.join(moved)} to the host")
    if above.head_on_host and above.head_prefetch and not below.head_prefetch:
        said.append("the head after the last block instead of beside it")
    return "; ".join(said)
