"""Answers and other looks at a model that no run is around: its plan, and room for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from poros.config import PorosConfig
from poros.errors import PorosHostMemoryError, PorosOOMError
from poros.events import Event, Warned
from poros.loading.base_model import BaseModel
from poros.memory_answers import AnswerShape, plan_for_answers, without_training
from poros.memory_plan import MemoryPlan
from poros.memory_planner import all_on_device, choose, smallest
from poros.memory_sizes import SHORT_BYTES, ModelSizes, StepShape, usable_bytes
from poros.streaming.shortage import Shortage, is_host_shortage, until_it_fits
from poros.training.cap import held_to
from poros.training.placement import Placement, in_words
from poros.training.planning import fixed_plan, model_sizes, room_bytes, step_shape
from poros.training.room import by_smaller_plans, in_bytes

T = TypeVar("T")

Emit = Callable[[Event], None]

_CACHED_TOKENS = 8192
"""Whose keys and values there is room for when blocks are kept on the device."""


def plan_answers(base: BaseModel, config: PorosConfig, device: torch.device) -> MemoryPlan:
    """The plan of a model that answers: what fits beside a conversation stays on the device."""
    budget_bytes = room_bytes(config, device)
    if budget_bytes is None:
        return without_training(fixed_plan(config))
    return plan_for_answers(
        usable_bytes(budget_bytes),
        model_sizes(base, config),
        AnswerShape(
            num_tokens=min(_CACHED_TOKENS, context_tokens(base.model.config) or _CACHED_TOKENS),
            cache_bytes=_cache_bytes(base),
        ),
        num_slots=config.num_slots,
    )


def plan_loop(base: BaseModel, config: PorosConfig, device: torch.device) -> MemoryPlan:
    """The plan of a model that a loop of the user's own may train: a step has room.

    It is of the config's batch and length. With ``auto`` head and embeddings are on the device
    however little fits, since such a loop may want logits with gradients. Moments and adapters are
    that loop's own.
    """
    budget_bytes = room_bytes(config, device)
    plan = fixed_plan(config)
    if budget_bytes is not None:
        sizes, usable = model_sizes(base, config), usable_bytes(budget_bytes)
        step = step_shape(config, config.per_device_batch_size * config.max_seq_length)
        plan = all_on_device(usable, sizes, step, num_slots=config.num_slots) or plan
        if config.vram_budget != "auto" and not plan.resident:
            plan = _chosen(usable, sizes, step, config.num_slots)
    return replace(plan, moments_on_host=False, adapters_on_host=False)


def _chosen(usable: int, sizes: ModelSizes, step: StepShape, num_slots: int) -> MemoryPlan:
    try:
        return choose(usable, sizes, step, num_slots=num_slots).plan
    except PorosOOMError:
        return smallest(MemoryPlan())  # shorter steps and answers may do


def context_tokens(config: Any) -> int | None:
    """The most tokens of question and answer together; None: not known."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _cache_bytes(base: BaseModel) -> int:
    text: Any = base.model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * int(heads) * int(width) * SHORT_BYTES * len(base.layers)


class AnswerRoom:
    """Lets a model answer under ever smaller plans, until the device's memory is enough.

    Args:
        placement: What can move to the host.
        emit: Is told of every smaller plan.
        vram_budget: As the setting; no more than a number of GB is taken meanwhile.
        ask_less: What to do where nothing smaller is left.
    """

    def __init__(
        self, placement: Placement, emit: Emit, *, vram_budget: float | str, ask_less: str
    ) -> None:
        """Leave everything where it is."""
        self.placement = placement
        self._emit, self._vram_budget, self._ask_less = emit, vram_budget, ask_less

    @property
    def is_lost(self) -> bool:
        """Whether memory ended half way to a smaller plan: nothing more can be answered."""
        return self.placement.half_moved

    def fitted(self, attempt: Callable[[], T], *, phase: str = "answer") -> T:
        """What the attempt gives; it is made again, from its beginning, after each shortage.

        Args:
            attempt: Changes nothing of the model.
            phase: What it is.

        Raises:
            PorosOOMError: Nothing is left that could move.
            PorosHostMemoryError: The host's memory is not enough.
        """
        device = self.placement.device
        try:
            with held_to(self._vram_budget, device):
                return until_it_fits(
                    attempt,
                    phase=lambda: phase,
                    device=device,
                    make_room=by_smaller_plans(
                        self.placement,
                        again=self._again,
                        shrunk=self._shrunk,
                        refusal=self._refusal,
                    ),
                    undo=self.placement.rest,
                )
        except (MemoryError, RuntimeError) as error:
            if not is_host_shortage(error):
                raise
            raise PorosHostMemoryError(
                "the computer has too little memory",
                where=phase,
                remediation=f"close other programs, or {self._ask_less}",
            ) from error

    def _shrunk(self, above: MemoryPlan, below: MemoryPlan, shortage: Shortage) -> None:
        self._tell(
            f"{shortage.phase}: out of device memory; now {in_words(above, below)}, and"
            " again, same bits"
        )

    def _again(self, shortage: Shortage) -> None:
        self._tell(
            f"{shortage.phase}: out of device memory under the smallest plan; what nobody used was"
            " given back, and it is tried once more"
        )

    def _tell(self, message: str) -> None:
        self._emit(Warned(code="memory", message=message))

    def _refusal(self, shortage: Shortage) -> PorosOOMError:
        return PorosOOMError(
            f"{shortage.reason}: {in_bytes(shortage)}everything that can be is on the host",
            where=shortage.phase,
            remediation=f"{self._ask_less}; or end other programs that use the card",
            **shortage.sizes(),
        )
