"""What a run does when the device's memory runs out: a smaller plan, or words if there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeVar

from poros.config import PorosConfig
from poros.data.batches import Batch
from poros.errors import PorosOOMError
from poros.events import Event, PlanShrunk, Warned
from poros.memory_plan import MemoryPlan
from poros.streaming.shortage import MakeRoom, Shortage, until_it_fits
from poros.told_sizes import told_size
from poros.training.fitting import fits, fitting_setting
from poros.training.placement import Placement, in_words

T = TypeVar("T")

Pass = Callable[[Batch], None]
"""Forward and backward of a batch, for the memory that they take."""


class Room:
    """Makes room for steps, evaluations and answers.

    Args:
        placement: What can move to the host.
        config: The run's settings, to name those that would help.
        emit: Is told of every smaller plan.
    """

    def __init__(
        self, placement: Placement, config: PorosConfig, emit: Callable[[Event], None]
    ) -> None:
        """Leave everything where it is."""
        self.placement, self._config, self._emit = placement, config, emit

    def maker(
        self, step: int, micro_batches: Sequence[Batch] = (), attempt: Pass | None = None
    ) -> MakeRoom:
        """What to call when memory ran out in a step, or after it; one a step.

        It takes smaller plans while there are some, then lets the smallest one try once more.

        Args:
            step: Its number.
            micro_batches: What it learns from.
            attempt: Finds out what would fit, once nothing smaller is left.
        """
        return by_smaller_plans(
            self.placement,
            again=lambda shortage: self._again_as_it_is(step, shortage),
            shrunk=lambda above, below, shortage: self._emit(
                PlanShrunk(
                    step=step,
                    change=in_words(above, below),
                    plan=dataclasses.asdict(below),
                    **shortage.sizes(),
                )
            ),
            refusal=lambda shortage: self._nothing_smaller(shortage, step, micro_batches, attempt),
        )

    def first_that_fits(
        self, phase: str, step: int, attempts: Sequence[tuple[str, Callable[[], T]]]
    ) -> T | None:
        """What the first attempt gives that the memory is enough for; None: it is for none.

        Plans get smaller before the second attempt is made, since they keep the bits.

        Args:
            phase: ``evaluate`` or ``sample``.
            step: After which.
            attempts: Ever smaller ones, each with words for how it is done.
        """
        for number, (how, attempt) in enumerate(attempts):
            if number:
                self._warn(phase, f"done {how}, since the device's memory is not enough otherwise")
            try:
                return until_it_fits(
                    attempt,
                    phase=lambda: phase,
                    device=self.placement.device,
                    make_room=self.maker(step),
                    undo=self.placement.rest,
                )
            except PorosOOMError:
                if self.placement.half_moved:
                    raise
                continue
        self._warn(phase, "left out: the device has too little memory for it")
        return None

    def _again_as_it_is(self, step: int, shortage: Shortage) -> None:
        message = (
            f"step {step}, {shortage.phase}: out of device memory under the smallest plan; what"
            " nobody used was given back, and it is tried once more"
        )
        self._emit(Warned(code="memory", message=message))

    def _warn(self, phase: str, message: str) -> None:
        self._emit(Warned(code=f"{phase}-memory", message=f"{phase}: {message}"))

    def _nothing_smaller(
        self,
        shortage: Shortage,
        step: int,
        micro_batches: Sequence[Batch],
        attempt: Pass | None,
    ) -> PorosOOMError:
        way_out, setting = self._way_out(shortage, micro_batches, attempt)
        return PorosOOMError(
            f"{shortage.reason}: {in_bytes(shortage)}everything that can be is on the host",
            where=f"step {step}, {shortage.phase}",
            remediation=way_out,
            setting=setting,
            **shortage.sizes(),
        )

    def _way_out(
        self, shortage: Shortage, micro_batches: Sequence[Batch], attempt: Pass | None
    ) -> tuple[str, str]:
        """Words, and the setting in them if one was found."""
        config = self._config
        if config.layers_per_block > 1:
            return "set block_size: 1 (same bits) and run again", "block_size: 1"
        if shortage.phase == "step":
            return "end other programs that use the card, or lower lora_rank", ""
        found = None
        if attempt is not None and micro_batches:
            placement = self.placement
            largest = max(micro_batches, key=lambda batch: batch.input_ids_BT.numel())
            found = fitting_setting(
                largest, lambda batch: fits(attempt, batch, placement.device, placement.rest)
            )
        if found is None:
            words = (
                "end other programs that use the card; otherwise lower max_seq_length or"
                " per_device_batch_size, which starts another run"
            )
            return words, ""
        if found.num_rows:
            num_micro_batches = (
                config.gradient_accumulation_steps * config.per_device_batch_size // found.num_rows
            )
            setting = (
                f"per_device_batch_size: {found.num_rows} with gradient_accumulation_steps:"
                f" {num_micro_batches}"
            )
        else:
            setting = f"max_seq_length: {found.num_tokens}"
        return f"set {setting}, which was tried and fits, and start another run", setting


def by_smaller_plans(
    placement: Placement,
    *,
    again: Callable[[Shortage], None],
    shrunk: Callable[[MemoryPlan, MemoryPlan, Shortage], None],
    refusal: Callable[[Shortage], PorosOOMError],
) -> MakeRoom:
    """Makes room by smaller plans while there are some, then lets the smallest one try once more.

    Args:
        placement: What can move.
        again: Is told that nothing smaller is left.
        shrunk: Is told each smaller plan, after the one that was in force.
        refusal: The error for a shortage that nothing helps against.
    """
    tried_as_it_is = False

    def make_room(shortage: Shortage) -> None:
        nonlocal tried_as_it_is
        above = placement.plan
        below = placement.shrink()
        if below is not None:
            shrunk(above, below, shortage)
            return
        if tried_as_it_is:
            raise refusal(shortage)
        # What was freed may lie together now, and other programs come and go.
        tried_as_it_is = True
        placement.rest()
        again(shortage)

    return make_room


def in_bytes(shortage: Shortage) -> str:
    """What is known of a shortage's sizes, before what else is said of it."""
    if not shortage.cap_bytes:
        return ""
    sizes = (shortage.asked_bytes, shortage.in_use_bytes, shortage.cap_bytes)
    asked, in_use, cap = map(told_size, sizes)
    return f"{asked} asked for, {in_use} of {cap} in use, "
