"""What a chat template does that has to be known before its texts can be trained on.

Templates don't say it; each is asked with a dialogue whose words stand nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from poros.row_shapes import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Form = Callable[[Message], Message]
"""Writes a turn in the way that one group of templates reads it."""

QUESTION, ANSWER = "probe-question-one", "probe-answer-one"
SYSTEM, THOUGHT, RESULT = "probe-system", "probe-thought", "probe-result"

DIALOGUE: tuple[Message, ...] = (
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "probe-question-two"},
    {"role": "assistant", "content": "probe-answer-two"},
)

_TOOL_NAME, _ARGUMENT = "probe_tool", "probe-argument"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "probe-description",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "probe-key"}},
            "required": ["probe_key"],
        },
    },
}
# Mistral's templates take ids of nine characters only.
_CALL: dict[str, Any] = {
    "type": "function",
    "id": "probe0001",
    "function": {"name": _TOOL_NAME, "arguments": {"probe_key": _ARGUMENT}},
}
SYSTEM_TURN: Message = {"role": "system", "content": SYSTEM}
CALLING: Message = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
TOOL_TURN: Message = {
    "role": "tool",
    "content": RESULT,
    "name": _TOOL_NAME,
    "tool_call_id": "probe0001",
}


def markers_of(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The added tokens by id, which texts can't come to by chance.

    Some tokenizers add tokens for runs of newlines, too: those mark nothing.
    """
    added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
    return {i: content for i, content in added.items() if content.strip()}


@dataclass(frozen=True, slots=True)
class Ends:
    """How the template ends an answer.

    Args:
        closing: The token that ends the assistant's turn; empty if the template writes none.
        surplus: What it writes at the end of the whole text, after that token (Phi-3 does).
    """

    closing: str
    surplus: str

    def turn_end(self, text: str) -> int:
        """Where the last turn of ``text`` ends."""
        return len(text) - len(self.surplus) if text.endswith(self.surplus) else len(text)


def learn_ends(short: str, long: str, markers: Sequence[str]) -> Ends:
    """The ends, from texts of the dialogue: its first two turns, and all of it."""
    at_end = short.partition(ANSWER)[2]
    amid = long.partition(ANSWER)[2]
    common = at_end[: _common_length(at_end, amid, markers)]
    closing = _last_marker(common, markers)
    if closing:
        return Ends(closing, at_end[len(common) :])
    return Ends(_last_marker(at_end, markers), "")


def learn_prompt_surplus(prompt: str, text: str, markers: Sequence[str]) -> str:
    """What the prompt for an answer ends with and the answer's own text lacks.

    DeepSeek's distilled models are asked with an opened thinking block, Gemma 4 with an empty one.
    """
    common = _common_length(prompt, text, markers)
    opening = text[common:].partition(ANSWER)[0]
    for marker in sorted(markers, key=len, reverse=True):
        opening = opening.replace(marker, "")
    # A word in there is the header of a turn: prompt and answer are not of the same turn.
    return "" if opening.strip() else prompt[common:]


def opens_another_answer(prompt: str, text: str, markers: Sequence[str]) -> bool:
    """Whether the text of a finished dialogue ends as a prompt does."""
    header = prompt[prompt.rfind(_last_marker(prompt, markers)) :]
    return bool(header.strip()) and text.endswith(header)


def _common_length(a: str, b: str, markers: Sequence[str]) -> int:
    """How far two texts are the same, up to the beginning of a token that the end would cut."""
    pairs = zip(a, b, strict=False)
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    cut = length
    for marker in markers:
        for start in range(max(0, length - len(marker) + 1), length):
            if a.startswith(marker, start) or b.startswith(marker, start):
                cut = min(cut, start)
    return cut


def _last_marker(text: str, markers: Sequence[str]) -> str:
    # Of two that end together the longer is the token; a shorter one is a part of it.
    ends = [(text.rfind(m) + len(m), len(m), m) for m in markers if m in text]
    return max(ends, default=(0, 0, ""))[2]


def _as_key(key: str) -> Form:
    def form(message: Message) -> Message:
        thought = message.get("reasoning_content")
        if thought is None:
            return message
        return {k: v for k, v in message.items() if k != "reasoning_content"} | {key: thought}

    return form


def _as_parts(message: Message) -> Message:
    thought = message.get("reasoning_content")
    if thought is None:
        return message
    parts = [{"type": "thinking", "thinking": thought}]
    if message["content"]:
        parts.append({"type": "text", "text": message["content"]})
    return {k: v for k, v in message.items() if k != "reasoning_content"} | {"content": parts}


def _as_json_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        calls.append(call | {"function": call["function"] | {"arguments": arguments}})
    return message | {"tool_calls": calls}


THINKING_FORMS: tuple[Form, ...] = (
    *map(_as_key, ("reasoning_content", "reasoning", "thinking")),
    _as_parts,
)
CALL_FORMS: tuple[Form, ...] = (lambda message: message, _as_json_text)


def shows_thought(text: str) -> bool:
    """Whether the thought stands in the text as thought, and not as Python's or JSON's object."""
    return text.count(THOUGHT) == 1 and "'type'" not in text and '"type"' not in text


def shows_call(text: str) -> bool:
    """Whether the call stands in the text, its arguments neither Python's nor JSON in JSON."""
    return (
        _TOOL_NAME in text
        and _ARGUMENT in text
        and "'probe_key'" not in text
        and '\\"probe_key' not in text
    )
