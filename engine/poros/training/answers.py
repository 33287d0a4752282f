"""Answers and other looks at a model that no run is around: its plan, and room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from poros.config import PorosConfig
from poros.errors import PorosHostMemoryError, PorosOOMError
from poros.events import Event, Warned
from poros.loading.base_model import BaseModel
from poros.memory_answers import AnswerShape, plan_for_answers, without_training
from poros.memory_plan import MemoryPlan
from poros.memory_planner import all_on_device
from poros.memory_sizes import SHORT_BYTES, usable_bytes
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
    """The plan of a model for answers and for a loop of the user's own.

    With ``auto`` head and embeddings are on the device, since such a loop may want logits with
    gradients, and blocks for which a step of the config's batch and length leaves room. A budget
    that is named goes before that.
    """
    budget_bytes = room_bytes(config, device)
    if budget_bytes is None:
        return without_training(fixed_plan(config))
    if config.vram_budget != "auto":
        return plan_answers(base, config, device)
    step = step_shape(config, config.per_device_batch_size * config.max_seq_length)
    return all_on_device(
        usable_bytes(budget_bytes), model_sizes(base, config), step, num_slots=config.num_slots
    )


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
                "the host has too little memory",
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
            remediation=f"{self._ask_less}; or free the device of other programs",
            **shortage.sizes(),
        )
