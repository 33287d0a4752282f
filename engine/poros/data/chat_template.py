"""The tokenizer's chat template: checked before use, its answers told from the rest.

Which characters of a conversation the model must learn is found without the template's help, since
hardly any marks them: what the template makes of the turns before an answer, generation prompt
included, is where the answer begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from jinja2 import TemplateSyntaxError
from jinja2.exceptions import SecurityError

from poros.data.template_habits import (
    DIALOGUE,
    QUESTION,
    Ends,
    learn_ends,
    learn_prompt_surplus,
    markers_of,
    opens_another_answer,
)
from poros.data.template_writer import PINNED_DATE, TemplateWriter, UnrenderableError
from poros.errors import PorosModelError
from poros.row_shapes import Message
from poros.row_tools import Tool

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PINNED_DATE", "ChatTemplate", "Rendered", "UnrenderableError"]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text for the tokenizer.

    Args:
        text: All of it.
        trained: Start and end of the characters that the model learns; None means all.
        ends_with_answer: Whether the end of the text is the end of a turn the model speaks.
        is_closed: Whether a token that ends that turn stands there already.
    """

    text: str
    trained: tuple[tuple[int, int], ...] | None
    ends_with_answer: bool
    is_closed: bool = False


class ChatTemplate:
    """A checked chat template.

    Args:
        tokenizer: The tokenizer that carries it.

    Raises:
        PorosModelError: There is none, or it doesn't show what it is given.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Find the template and try it on a dialogue of two questions."""
        self._markers = tuple(markers_of(tokenizer).values())
        try:
            self._writer = TemplateWriter(tokenizer)
        except (ValueError, TypeError) as error:
            raise _refused(
                "the tokenizer has no chat template, which this shape of data needs",
                "take a model with a chat template (an instruct or chat one), or give plain text",
            ) from error
        self.render = self._writer.render
        self.sha256 = self._writer.sha256
        self._check()

    def render_everything(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> list[Rendered]:
        """The conversation, every character to be learned.

        Raises:
            UnrenderableError: The template refuses these turns or leaves a part of them out.
        """
        self._check_roles(messages, tools, asked=False)
        text = self.render(messages, tools=tools)
        last = len(messages) - 1
        ends_with_answer = messages[last]["role"] == "assistant"
        if ends_with_answer:
            self._check_shown(messages[last], last, text)
        return [Rendered(text, None, ends_with_answer, self._is_closed(text))]

    def render_answers(
        self, messages: Sequence[Message], tools: Sequence[Tool] = ()
    ) -> list[Rendered]:
        """The conversation with its answers marked: thinking, calls of tools and the turn's end.

        One text, if each answer stands in it as it was spoken. Some templates write earlier answers
        in another way than the last one (they leave its reasoning out): there each answer becomes a
        text of its own, after the turns before it as the model will see them.

        Raises:
            UnrenderableError: The template refuses these turns or leaves a part of them out, or an
                answer doesn't begin where its prompt ends.
        """
        self._check_roles(messages, tools, asked=True)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        whole = self.render(messages, tools=tools)
        parts = [self._answer(messages, i, whole, tools) for i in answers]
        ends_with_answer = messages[-1]["role"] == "assistant"
        if all(whole.startswith(part.text[: self._ends.turn_end(part.text)]) for part in parts):
            spans = [span for part in parts for span in part.trained or ()]
            trained = tuple((start, self._with_stop(whole, end)) for start, end in spans)
            return [Rendered(whole, trained, ends_with_answer, self._is_closed(whole))]
        return parts

    @property
    def stops(self) -> tuple[str, ...]:
        """The tokens of which one ends an answer: what the template writes there, or any."""
        return (self._ends.closing,) if self._ends.closing else self._markers

    @cached_property
    def prompt_surplus(self) -> str:
        """What prompts end with and answers lack in the texts to be learned."""
        prompt, text = self._probe_prompt, self.render(DIALOGUE[:2])
        return "" if text.startswith(prompt) else learn_prompt_surplus(prompt, text, self._markers)

    @cached_property
    def _probe_prompt(self) -> str:
        return self.render(DIALOGUE[:1], prompt=True)

    @cached_property
    def _ends(self) -> Ends:
        return learn_ends(self.render(DIALOGUE[:2]), self.render(DIALOGUE), self._markers)

    def _answer(
        self, messages: Sequence[Message], index: int, whole: str, tools: Sequence[Tool]
    ) -> Rendered:
        if index == 0:
            raise UnrenderableError("the first message is the assistant's, nothing to answer")
        prompt = self.render(messages[:index], prompt=True, tools=tools)
        is_last = index + 1 == len(messages)
        text = whole if is_last else self.render(messages[: index + 1], tools=tools)
        if not text.startswith(prompt):
            prompt = prompt.removesuffix(self.prompt_surplus)
        if not text.startswith(prompt):
            text = _spliced(prompt, text, asked=messages[index - 1]["content"].strip())
        if not text.startswith(prompt):
            raise UnrenderableError(
                f"the chat template writes messages[{index}] so that it doesn't begin where its "
                "prompt ends; completions can't be told from prompts",
                "mend the row, or set train_on: everything",
            )
        end = self._ends.turn_end(text)
        answer = text[len(prompt) : end]
        # What a template opens the answer with may be the beginning of what the data say.
        header = len(self._probe_prompt.partition(QUESTION)[2])
        self._check_shown(messages[index], index, text[max(0, len(prompt) - header) : end])
        closing = self._ends.closing
        if closing and answer.count(closing) > 1:
            raise UnrenderableError(
                f"messages[{index}] ends more than once: {closing!r} stands in its text",
                "leave the template's own tokens out of the data",
            )
        return Rendered(text, ((len(prompt), end),), True, self._is_closed(text))

    def _is_closed(self, text: str) -> bool:
        return bool(self._ends.closing) and text.rstrip().endswith(self._markers)

    def _with_stop(self, whole: str, end: int) -> int:
        """The end, with the next turn's header where that alone tells the model to stop (GLM)."""
        if self._ends.closing:
            return end
        header = max((m for m in self._markers if whole.startswith(m, end)), key=len, default="")
        return end + len(header)

    def _check_shown(self, message: Message, index: int, answer: str) -> None:
        """Refuse to train on half an answer: templates leave out what they don't know."""
        seen = _without_space(answer)
        if _without_space(message["content"]) not in seen:
            raise _left_out(f"a part of the content of messages[{index}]")
        if _without_space(message.get("reasoning_content", "")) not in seen:
            raise _left_out(f"the thinking (reasoning_content) of messages[{index}]")
        if any(call["function"]["name"] not in answer for call in message.get("tool_calls", ())):
            raise _left_out(f"tool_calls of messages[{index}]")

    def _check_roles(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, asked: bool
    ) -> None:
        if tools and not self._writer.shows_tools:
            raise _left_out("tools")
        roles = {message["role"] for message in messages}
        if "tool" in roles and not self._writer.shows_results:
            raise _left_out("turns of tools")
        if "system" in roles and not (
            self._writer.shows_system_asked if asked else self._writer.shows_system
        ):
            raise _left_out("the system turn")

    def _check(self) -> None:
        try:
            shown = self.render(DIALOGUE)
        except UnrenderableError as error:
            kind = "can't be rendered"
            if isinstance(error.__cause__, TemplateSyntaxError):
                kind = "has a syntax error"
            elif isinstance(error.__cause__, SecurityError):
                kind = "tries to leave the sandbox"
            raise _refused(f"the chat template {kind}: {error.__cause__}", _REPAIR) from error
        missing = [turn["content"] for turn in DIALOGUE if turn["content"] not in shown]
        if missing:
            raise _refused(f"the chat template leaves out what is said ({missing[0]})", _REPAIR)

    def check_answers(self) -> None:
        """Refuse a template under which answers can't be told from prompts.

        Raises:
            PorosModelError: The answers of a dialogue of two questions can't be found.
        """
        try:
            if opens_another_answer(self._probe_prompt, self.render(DIALOGUE[:2]), self._markers):
                raise UnrenderableError("the chat template opens another answer after the last one")
            self.render_answers(DIALOGUE)
        except UnrenderableError as error:
            raise _refused(str(error), f"set train_on: everything; or {_REPAIR}") from error


_REPAIR = "mend chat_template in the tokenizer's folder, or take the model's original tokenizer"


def _without_space(text: str) -> str:
    return "".join(text.split())


def _spliced(prompt: str, text: str, *, asked: str) -> str:
    """The prompt, and what follows the same question in the text.

    Mistral's templates show the system turn with the last question, as long as nothing follows it:
    the model is asked with it, so that is what it has to learn after.
    """
    question = prompt[prompt.rfind(asked) :] if asked and asked in prompt else ""
    before, found, answer = text.rpartition(question) if question else (text, "", "")
    return prompt + answer if found and question not in before else text


def _left_out(what: str) -> UnrenderableError:
    return UnrenderableError(
        f"the chat template leaves out {what}",
        "take it out of the data, or give the conversations as plain text, written as they must be",
    )


def _refused(message: str, remediation: str) -> PorosModelError:
    return PorosModelError(message, where="chat template", remediation=remediation)
