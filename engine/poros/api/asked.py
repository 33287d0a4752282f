"""What the API's classes have in common: questions answered, and what is told meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from poros.events import Event, Warned
from poros.training.answers import AnswerRoom
from poros.training.placement import Placement
from poros.training.samples import answer

_ASK_LESS = "lower max_new_tokens, or ask fewer and shorter prompts at a time"


def room_of(placement: Placement, vram_budget: float | str) -> AnswerRoom:
    """Room for what a program asks of a model."""
    return AnswerRoom(placement, tell_warnings, vram_budget=vram_budget, ask_less=_ASK_LESS)


def answers(
    model: PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: str | Sequence[str],
    *,
    max_new_tokens: int,
    room: AnswerRoom,
) -> list[str]:
    """The likeliest token each time; one prompt alone is one question.

    Raises:
        PorosOOMError: The device's memory is not enough, wherever the model lies.
    """
    asked = [prompts] if isinstance(prompts, str) else list(prompts)
    return room.fitted(
        lambda: answer(
            model,
            tokenizer,
            asked,
            max_new_tokens=max_new_tokens,
            device=room.placement.device,
        )
    )


def tell_warnings(event: Event) -> None:
    """Of what happens outside a run, warnings are shown."""
    if isinstance(event, Warned):
        sys.stderr.write(f"poros: warning: {event.message}\n")
