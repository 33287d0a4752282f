"""The tokenizer's chat template: checked before use, rendered the same on every day.

Which characters of a conversation the model must learn is found without the template's help, since
hardly any marks them: what the template makes of the turns before an answer, generation prompt
included, is where the answer begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from poros.errors import PorosModelError
from poros.row_shapes import Message

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

_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "probe-question-one"},
    {"role": "assistant", "content": "probe-answer-one"},
    {"role": "user", "content": "probe-question-two"},
    {"role": "assistant", "content": "probe-answer-two"},
)


class UnrenderableError(ValueError):
    """This conversation can't be rendered, or its answers can't be told from the rest."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text for the tokenizer.

    Args:
        text: All of it.
        trained: Start and end of the characters that the model learns; None means all.
        ends_with_answer: Whether the end of the text is the end of a turn the model speaks.
    """

    text: str
    trained: tuple[tuple[int, int], ...] | None
    ends_with_answer: bool


class ChatTemplate:
    """A checked chat template.

    Args:
        tokenizer: The tokenizer that carries it.

    Raises:
        PorosModelError: There is none, or it doesn't show what it is given.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Find the template and try it on a dialogue of two questions."""
        self._tokenizer = tokenizer
        try:
            source = tokenizer.get_chat_template()
        except (ValueError, TypeError) as error:
            raise _refused(
                "the tokenizer has no chat template, which this shape of data needs",
                "take a model with a chat template (an instruct or chat one), or give plain text",
            ) from error
        self.sha256 = hashlib.sha256(source.encode()).hexdigest()
        self._source = _STOPPED_CLOCK + source if "strftime_now" in source else source
        self._check()

    def render(self, messages: Sequence[Message], *, prompt: bool = False) -> str:
        """The text of the turns, with the header of the next answer if ``prompt``.

        Raises:
            UnrenderableError: The template refuses these turns.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                list(messages),
                chat_template=self._source,
                tokenize=False,
                add_generation_prompt=prompt,
                date_string=PINNED_DATE,
            )
        except _RENDER_FAULTS as error:
            raise UnrenderableError(f"the chat template refuses the row: {error}") from error
        assert isinstance(text, str)  # tokenize=False, one conversation
        return text

    def render_everything(self, messages: Sequence[Message]) -> list[Rendered]:
        """The conversation, every character to be learned.

        Raises:
            UnrenderableError: The template refuses these turns.
        """
        return [Rendered(self.render(messages), None, messages[-1]["role"] == "assistant")]

    def render_answers(self, messages: Sequence[Message]) -> list[Rendered]:
        """The conversation with its answers marked.

        One text, if each answer stands in it as it was spoken. Some templates write earlier answers
        in another way than the last one (they leave its reasoning out): there each answer becomes a
        text of its own, after the turns before it as the model will see them.

        Raises:
            UnrenderableError: The template refuses these turns, or an answer doesn't begin where
                its prompt ends.
        """
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        whole = self.render(messages)
        parts = [self._answer(messages, i, whole) for i in answers]
        ends_with_answer = messages[-1]["role"] == "assistant"
        if all(whole.startswith(part.text) for part in parts):
            trained = tuple(span for part in parts for span in part.trained or ())
            return [Rendered(whole, trained, ends_with_answer)]
        return parts

    def _answer(self, messages: Sequence[Message], index: int, whole: str) -> Rendered:
        if index == 0:
            raise UnrenderableError("the first message is the assistant's, nothing to answer")
        prompt = self.render(messages[:index], prompt=True)
        is_last = index + 1 == len(messages)
        text = whole if is_last else self.render(messages[: index + 1])
        if not text.startswith(prompt):
            raise UnrenderableError(
                f"the chat template writes messages[{index}] so that it doesn't begin where its "
                "prompt ends; completions can't be told from prompts"
            )
        return Rendered(text, ((len(prompt), len(text)),), ends_with_answer=True)

    def _check(self) -> None:
        try:
            shown = self.render(_PROBE)
        except UnrenderableError as error:
            kind = "can't be rendered"
            if isinstance(error.__cause__, TemplateSyntaxError):
                kind = "has a syntax error"
            elif isinstance(error.__cause__, SecurityError):
                kind = "tries to leave the sandbox"
            raise _refused(f"the chat template {kind}: {error.__cause__}", _REPAIR) from error
        missing = [turn["content"] for turn in _PROBE if turn["content"] not in shown]
        if missing:
            raise _refused(f"the chat template leaves out what is said ({missing[0]})", _REPAIR)

    def check_answers(self) -> None:
        """Refuse a template under which answers can't be told from prompts.

        Raises:
            PorosModelError: The answers of a dialogue of two questions can't be found.
        """
        try:
            self.render_answers(_PROBE)
        except UnrenderableError as error:
            raise _refused(str(error), f"set train_on: everything; or {_REPAIR}") from error


_REPAIR = "mend chat_template in the tokenizer's folder, or take the model's original tokenizer"


def _refused(message: str, remediation: str) -> PorosModelError:
    return PorosModelError(message, where="chat template", remediation=remediation)
