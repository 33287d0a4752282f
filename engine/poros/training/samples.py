"""The model's answers to the run's sample prompts, before and after the training.

Greedy, so that the same model gives the same answers, all prompts in one batch: through a streamed
model every token is a walk over all blocks, whatever the batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from poros import atomic
from poros.data.chat_template import ChatTemplate, UnrenderableError
from poros.data.tokens import choose_pad_token
from poros.errors import PorosModelError, PorosStorageError
from poros.user_cache import user_cache


def answer(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    device: torch.device,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Answers to ``prompts``, each a conversation of its own; the model's mode is restored.

    Args:
        model: A causal model of transformers, adapters on it or not, streamed or not.
        tokenizer: Its tokenizer; without a chat template the prompts are texts to go on with.
        prompts: What is asked.
        max_new_tokens: Most tokens of an answer.
        device: Where the inputs belong.
        progress: Told after each token how many each answer has.

    Raises:
        PorosModelError: The chat template refuses a prompt.
    """
    if not prompts:
        return []
    texts = _texts(prompts, tokenizer)
    pad, _ = choose_pad_token(tokenizer, model.config.vocab_size)
    input_ids_BT, attention_mask_BT = _left_padded(texts, tokenizer, pad)
    settings = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=pad,
        bos_token_id=model.generation_config.bos_token_id,
        eos_token_id=model.generation_config.eos_token_id,
    )
    with torch.no_grad(), _evaluating(model):
        tokens_BT = model.generate(
            input_ids=input_ids_BT.to(device),
            attention_mask=attention_mask_BT.to(device),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([_Told(progress)] if progress else []),
        )
    new_BT = tokens_BT[:, input_ids_BT.shape[1] :].cpu()
    return [text.strip() for text in tokenizer.batch_decode(new_BT, skip_special_tokens=True)]


class _Told(StoppingCriteria):
    """Stops nothing: the one place of `generate` that is called after each token of a batch."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self._num_tokens = progress, 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._num_tokens += 1
        self._progress(self._num_tokens)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _texts(prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    if not tokenizer.chat_template:
        return list(prompts)
    template = ChatTemplate(tokenizer)
    try:
        return [
            template.render([{"role": "user", "content": prompt}], prompt=True)
            for prompt in prompts
        ]
    except UnrenderableError as error:
        raise PorosModelError(
            f"the sample prompts can't be asked: {error}", remediation="delete samples"
        ) from error


def _left_padded(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, pad: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask; padding goes first, so that every answer begins in the same column."""
    # A chat template writes the special tokens itself.
    special = not tokenizer.chat_template
    rows = [tokenizer(text, add_special_tokens=special)["input_ids"] for text in texts]
    num_tokens = max(map(len, rows))
    padded = [[pad] * (num_tokens - len(row)) + row for row in rows]
    mask = [[0] * (num_tokens - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(padded), torch.tensor(mask)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off; every module's mode comes back as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


class AnswerCache:
    """What an untrained model answered, kept for the next start that would ask the same."""

    def __init__(self, **about: Any) -> None:
        """Keyed by everything that the answers depend on, plain JSON values."""
        text = json.dumps(about, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:32]
        self._path = user_cache() / "answers" / f"{name}.json"
        self._about: Mapping[str, Any] = about

    def read(self) -> list[str] | None:
        """The kept answers."""
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            return [str(text) for text in record["answers"]]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, answers: Sequence[str]) -> None:
        """Keep the answers; a disk that refuses them costs time at the next start, no more."""
        record = {"about": dict(self._about), "answers": list(answers)}
        with contextlib.suppress(OSError, PorosStorageError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_file(self._path, json.dumps(record, indent=1) + "\n")
