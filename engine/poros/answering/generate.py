"""`poros generate`: prompts on the command line, answers on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from poros.answering.load import load_speaker
from poros.answering.speaker import Sampling, Speaker
from poros.answering.told import shown, told
from poros.data.chat_template import ChatTemplate, UnrenderableError
from poros.errors import PorosConfigError, PorosDataError
from poros.row_shapes import Message


def run_generate(
    adapter: str,
    *,
    prompts: Sequence[str],
    system: str | None,
    compare: bool,
    as_json: bool,
    sampling: dict[str, Any],
    **options: Any,
) -> int:
    """Answer each prompt; returns the exit code.

    Args:
        adapter: A run or an adapter's folder.
        prompts: ``-`` is all of stdin.
        system: Goes before each of them.
        compare: Show the base's answer beside the adapter's.
        as_json: One document on stdout, nothing streamed.
        sampling: Fields of `Sampling`.
        options: Of `load_speaker`.
    """
    texts = [sys.stdin.read().strip() if prompt == "-" else prompt for prompt in prompts]
    speaker = load_speaker(adapter, emit=told, **options)
    asked = [prompt_ids(speaker, question(text, system)) for text in texts]
    show = _nothing if as_json else shown
    answers = []
    for text, ids in zip(texts, asked, strict=True):
        if not as_json and len(texts) > 1:
            shown(f"> {text}\n")
        record: dict[str, Any] = {"prompt": text, "num_prompt_tokens": len(ids)}
        for who in ("base", "adapter") if compare else ("adapter",):
            if compare:
                show(f"{who}:\n")
            adapted = who == "adapter"
            record[who] = speaker.answer(ids, Sampling(**sampling), adapted=adapted, show=show)
            show("\n")
        answers.append(record)
    if as_json:
        record = {"adapter": adapter, "base_model": speaker.base, "answers": answers}
        click.echo(json.dumps(record, ensure_ascii=False))
    return 0


def question(text: str, system: str | None) -> list[Message]:
    """A conversation of one question."""
    before: list[Message] = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": text}]


def prompt_ids(speaker: Speaker, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation that an answer is to follow.

    Without a chat template the last message is a text to go on with.

    Raises:
        PorosConfigError: A system turn that there is no place for.
        PorosDataError: The template refuses it, nothing is asked, or it fills the context.
    """
    tokenizer = speaker.tokenizer
    if tokenizer.chat_template:
        try:
            text = ChatTemplate(tokenizer).render(messages, prompt=True)
        except UnrenderableError as error:
            raise PorosDataError(
                str(error), where="the conversation", remediation="ask in another way"
            ) from error
    elif len(messages) > 1:
        raise PorosConfigError(
            "the model has no chat template, so there is no place for other turns",
            where=speaker.base,
            remediation="give the whole text as one prompt",
        )
    else:
        text = messages[0]["content"]
    ids = list(tokenizer(text, add_special_tokens=not tokenizer.chat_template)["input_ids"])
    room = speaker.room(len(ids))
    if not ids:
        raise PorosDataError("the prompt is empty", remediation="give a text to -p")
    if room is not None and room < 1:
        raise PorosDataError(
            f"{len(ids)} tokens, and the model's context has {speaker.context_tokens}",
            where="the prompt",
            remediation="ask with a shorter text",
        )
    return ids


def _nothing(text: str) -> None:
    """Show no bit of an answer: JSON has it whole."""
