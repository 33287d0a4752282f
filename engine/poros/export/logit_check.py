"""Whether the merged model says what base and adapter say: logits on three prompts, in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from poros.data.chat_template import ChatTemplate, UnrenderableError
from poros.errors import PorosModelError

PROMPTS = (
    "Who are you?",
    "Write one sentence about the sea.",
    "What is 17 + 25?",
)


@dataclass(frozen=True)
class Compared:
    """One prompt's logits of both.

    Attributes:
        prompt: What was asked.
        num_tokens: Of it.
        largest_difference: Over all positions and tokens.
        largest_logit: Of base and adapter, by its absolute value.
        same_next_token: Whether both would say the same next.
    """

    prompt: str
    num_tokens: int
    largest_difference: float
    largest_logit: float
    same_next_token: bool


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> list[Tensor]:
    """Token ids, (1, T) each; through the chat template, where there is one that renders them."""
    found = []
    template: ChatTemplate | None = None
    if tokenizer.chat_template:
        try:
            template = ChatTemplate(tokenizer)
        except PorosModelError:
            template = None
    for prompt in prompts:
        text, special = prompt, True
        if template is not None:
            try:
                text = template.render([{"role": "user", "content": prompt}], prompt=True)
                special = False
            except UnrenderableError:
                pass
        ids = tokenizer(text, add_special_tokens=special)["input_ids"]
        found.append(torch.tensor([ids]))
    return found


def logits_of(model: PreTrainedModel, ids: Sequence[Tensor]) -> list[Tensor]:
    """Of each prompt (T, V) in float32."""
    with torch.no_grad():
        return [model(input_ids=ids_1T, use_cache=False).logits[0].float() for ids_1T in ids]


def compare(
    prompts: Sequence[str], adapted: Sequence[Tensor], merged: Sequence[Tensor]
) -> list[Compared]:
    """Both models' logits, prompt by prompt.

    Raises:
        PorosModelError: The merged model computes NaN or infinity.
    """
    found = []
    for prompt, ours, theirs in zip(prompts, merged, adapted, strict=True):
        difference = float((ours - theirs).abs().max())
        if not bool(ours.isfinite().all()):
            raise PorosModelError(
                f"the merged model's logits are not finite for {prompt!r}",
                where="logits",
                remediation="export again; if it stays, report it with the adapter",
            )
        found.append(
            Compared(
                prompt=prompt,
                num_tokens=len(ours),
                largest_difference=difference,
                largest_logit=float(theirs.abs().max()),
                same_next_token=int(ours[-1].argmax()) == int(theirs[-1].argmax()),
            )
        )
    return found
