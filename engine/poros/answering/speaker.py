"""A base with its adapter, streamed as in training, that goes on with token ids."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from poros.data.tokens import choose_pad_token
from poros.training.answers import AnswerRoom

ASK_LESS = "ask for less: --max-new-tokens, a shorter conversation"


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: Most tokens of an answer.
        temperature: 0 takes the likeliest token, so that the same question has the same answer.
        top_p: Of the likeliest tokens, those that together have this probability.
        seed: Of the random numbers.
    """

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass
class Stop:
    """Whether the answer is to end with the token that is being made."""

    asked: bool = False


@dataclass
class Speaker:
    """Who answers.

    Attributes:
        model: Adapters on the streamed base.
        tokenizer: Its tokenizer.
        base: The base's name.
        context_tokens: The most tokens of question and answer together; None: not known.
        memory: Moves to the host what there is no room for.
        has_adapter: False: a whole model answers.
    """

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    base: str
    context_tokens: int | None
    memory: AnswerRoom
    has_adapter: bool = True

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.memory.placement.device

    def room(self, num_tokens: int) -> int | None:
        """Tokens that may follow so many; None: no limit is known."""
        return None if self.context_tokens is None else self.context_tokens - num_tokens

    def answer(
        self,
        ids: list[int],
        sampling: Sampling,
        *,
        adapted: bool = True,
        show: Callable[[str], None] = lambda text: None,
        stop: Stop | None = None,
    ) -> str:
        """What follows the tokens; special tokens are left out.

        Args:
            ids: At least one.
            sampling: How.
            adapted: With the adapter, or the base alone.
            show: Is given the text bit by bit.
            stop: Ends the answer early.

        Raises:
            PorosOOMError: The device's memory is not enough under the smallest plan.
            PorosHostMemoryError: The host's is not.
        """
        room = self.room(len(ids))
        wanted = sampling.max_new_tokens if room is None else min(sampling.max_new_tokens, room)
        once = _ShownOnce(show)

        def attempt() -> Tensor:
            once.begin()
            torch.manual_seed(sampling.seed)
            return self._made(
                torch.tensor([ids], device=self.device),
                self._settings(sampling, wanted),
                TextStream(self.tokenizer, once),
                stop or Stop(),
            )

        is_adapted = adapted and self.has_adapter
        alone = contextlib.nullcontext() if is_adapted else self.model.disable_adapter()
        with alone:
            made_1T = self.memory.fitted(attempt)
        new_ids = made_1T[0, len(ids) :].tolist()
        return str(self.tokenizer.decode(new_ids, skip_special_tokens=True))

    def _made(
        self, ids_1T: Tensor, settings: GenerationConfig, stream: TextStream, stop: Stop
    ) -> Tensor:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries to each other; nothing to act on
            made_1T: Tensor = self.model.generate(
                input_ids=ids_1T,
                attention_mask=torch.ones_like(ids_1T),
                generation_config=settings,
                streamer=stream,
                stopping_criteria=StoppingCriteriaList([_Stopped(stop)]),
            )
        return made_1T

    def _settings(self, sampling: Sampling, num_tokens: int) -> GenerationConfig:
        own: Any = self.model.generation_config
        pad, _ = choose_pad_token(self.tokenizer, self.model.config.get_text_config().vocab_size)
        ends = own.eos_token_id
        ends = [ends] if isinstance(ends, int) else list(ends or [])
        if self.tokenizer.eos_token_id is not None:
            ends.append(self.tokenizer.eos_token_id)
        drawn: dict[str, Any] = {}
        if sampling.temperature > 0:
            drawn = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        return GenerationConfig(
            do_sample=sampling.temperature > 0,
            max_new_tokens=num_tokens,
            pad_token_id=pad,
            bos_token_id=own.bos_token_id,
            eos_token_id=sorted(set(ends)) or None,
            **drawn,
        )


class TextStream(BaseStreamer):
    """Turns tokens into text as they come, never half a character."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]) -> None:
        """Wait for the prompt."""
        self._tokenizer, self._show = tokenizer, show
        self._ids: list[int] = []
        self._shown = ""
        self._saw_prompt = False

    def put(self, value: Tensor) -> None:
        """Take the prompt's ids at first, then those of each new token."""
        if not self._saw_prompt:
            self._saw_prompt = True
            return
        self._ids += value.flatten().tolist()
        text = str(self._tokenizer.decode(self._ids, skip_special_tokens=True))
        if text.endswith("\ufffd"):
            return  # the next tokens may make a character of it
        self._show(text.removeprefix(self._shown))
        self._shown = text
        if text.endswith("\n"):
            self._ids, self._shown = [], ""

    def end(self) -> None:
        """Show what was held back."""
        text = str(self._tokenizer.decode(self._ids, skip_special_tokens=True))
        self._show(text.removeprefix(self._shown))


class _Stopped(StoppingCriteria):
    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def __call__(self, input_ids: Tensor, scores: Tensor, **more: Any) -> Any:
        done = [self._stop.asked] * len(input_ids)
        return torch.tensor(done, device=input_ids.device)


class _ShownOnce:
    """Shows an answer that may be made again: the same beginning is not shown twice."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._num_shown = self._num_made = 0

    def begin(self) -> None:
        """It is made from its beginning."""
        self._num_made = 0

    def __call__(self, text: str) -> None:
        num_known = min(max(self._num_shown - self._num_made, 0), len(text))
        self._num_made += len(text)
        self._num_shown = max(self._num_shown, self._num_made)
        self._show(text[num_known:])
