"""A tokenizer's chat template at work: the same text on every day, each family's form of things."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from poros.data.template_habits import (
    CALL_FORMS,
    CALLING,
    DIALOGUE,
    RESULT,
    SYSTEM,
    SYSTEM_TURN,
    THINKING_FORMS,
    THOUGHT,
    TOOL,
    TOOL_TURN,
    Form,
    shows_call,
    shows_thought,
)
from poros.row_shapes import Message
from poros.row_tools import Tool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a template's own code can raise while it renders; any other exception is a bug of ours.
_RENDER_FAULTS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

PINNED_DATE = "26 Jul 2024"
"""The date that templates which print today's date get: data must not change overnight.

Llama's template has this same one for when no clock is at hand.
"""

# A macro of the same name hides the clock that transformers gives to templates. The empty
# expression keeps the newline that may follow: one right after a block tag would be removed.
_STOPPED_CLOCK = (
    "{% macro strftime_now(format) %}"
    "{{ {'%Y-%m-%d': '2024-07-26'}.get(format, '" + PINNED_DATE + "') }}"
    '{% endmacro %}{{ "" }}'
)

_FAULT_CHARACTERS = 200


class UnrenderableError(ValueError):
    """This conversation can't be rendered, or its answers can't be told from the rest.

    Args:
        message: What is wrong.
        remedy: The way out.
    """

    def __init__(self, message: str, remedy: str = "mend the row") -> None:
        """Keep the way out apart, for the error that names the row."""
        super().__init__(message)
        self.remedy = remedy


class TemplateWriter:
    """Renders turns by a tokenizer's template, which stays as it is.

    Args:
        tokenizer: The tokenizer that carries the template.

    Raises:
        ValueError: It carries none.
        TypeError: What it carries is no template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Find the template, and the other one that some tokenizers have for tools."""
        self._tokenizer = tokenizer
        sources = [tokenizer.get_chat_template(tools=tools) for tools in (None, [TOOL])]
        whole = "\0".join(dict.fromkeys(sources))
        self.sha256 = hashlib.sha256(whole.encode()).hexdigest()
        self._source, self._source_with_tools = map(_without_clock, sources)

    def render(
        self, messages: Sequence[Message], *, prompt: bool = False, tools: Sequence[Tool] = ()
    ) -> str:
        """The text of the turns, with the header of the next answer if ``prompt``.

        Args:
            messages: Thinking and calls of tools in the form of `poros.row_tools`; the template
                gets the form that it reads.
            prompt: Whether an answer is to follow.
            tools: On offer in the conversation.

        Raises:
            UnrenderableError: The template refuses these turns.
        """
        if any("reasoning_content" in message for message in messages):
            messages = [self._thinking_form(message) for message in messages]
        if any("tool_calls" in message for message in messages):
            messages = [self._call_form(message) for message in messages]
        return self._apply(messages, prompt=prompt, tools=tools)

    @cached_property
    def _call_form(self) -> Form:
        dialogue = (DIALOGUE[0], CALLING)
        return self._first_form(CALL_FORMS, [dialogue], shows_call)

    @cached_property
    def _thinking_form(self) -> Form:
        # Gemma 4 shows the thinking before a call, and none before an answer.
        thoughts = [turn | {"reasoning_content": THOUGHT} for turn in (DIALOGUE[1], CALLING)]
        dialogues = [(DIALOGUE[0], thought) for thought in thoughts]
        return self._first_form(THINKING_FORMS, dialogues, shows_thought)

    def _first_form(
        self,
        forms: Sequence[Form],
        dialogues: Sequence[Sequence[Message]],
        shows: Callable[[str], bool],
    ) -> Form:
        """The first form that the template shows; the first of all where it shows none."""
        for form in forms:
            for dialogue in dialogues:
                with suppress(UnrenderableError):
                    if shows(self._apply([form(message) for message in dialogue])):
                        return form
        return forms[0]

    def _apply(
        self, messages: Sequence[Message], *, prompt: bool = False, tools: Sequence[Tool] = ()
    ) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                xml_tools=list(tools) or None,  # SmolLM3's name for them
                chat_template=self._source_with_tools if tools else self._source,
                tokenize=False,
                add_generation_prompt=prompt,
                date_string=PINNED_DATE,
            )
        except _RENDER_FAULTS as error:
            said = " ".join(str(error).split())[:_FAULT_CHARACTERS]
            raise UnrenderableError(f"the chat template refuses the row: {said}") from error
        assert isinstance(text, str)  # tokenize=False, one conversation
        return text

    @cached_property
    def shows_tools(self) -> bool:
        return self._shows("probe_tool", DIALOGUE[:1], tools=[TOOL])

    @cached_property
    def shows_results(self) -> bool:
        return self._shows(RESULT, [DIALOGUE[0], CALLING, TOOL_TURN])

    @cached_property
    def shows_system_asked(self) -> bool:
        return self._shows(SYSTEM, [SYSTEM_TURN, DIALOGUE[0]], prompt=True)

    @cached_property
    def shows_system(self) -> bool:
        return self._shows(SYSTEM, [SYSTEM_TURN, *DIALOGUE[:2]])

    def _shows(self, word: str, messages: Sequence[Message], **options: Any) -> bool:
        try:
            return word in self.render(messages, **options)
        except UnrenderableError:
            return True  # it says so itself, and better, when it gets the row


def _without_clock(source: str) -> str:
    return _STOPPED_CLOCK + source if "strftime_now" in source else source
