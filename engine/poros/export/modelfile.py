"""Ollama's Modelfile: the tokenizer's chat template in Ollama's own words, as far as it has any.

Ollama reads no Jinja. What a template writes around the turns is found by rendering a conversation,
and said again in Ollama's form; one that can't be said so gets a Modelfile without a template,
which Ollama then fills in from those it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import GenerationConfig, PreTrainedTokenizerBase

from poros.data.template_writer import TemplateWriter, UnrenderableError
from poros.row_shapes import Message

_U1, _A1, _U2, _S = "QqUserOneqQ", "QqAnswerOneqQ", "QqUserTwoqQ", "QqSystemqQ"


@dataclass(frozen=True)
class Around:
    """What stands around the turns.

    Attributes:
        user: Before a question that no system turn precedes.
        system: Before a system turn; None: the template has none.
        asked: Between a system turn and the question.
        reply: Between a question and its answer.
        end: Behind an answer.
        default_system: What the template says where the conversation has no system turn.
    """

    user: str
    system: str | None
    asked: str
    reply: str
    end: str
    default_system: str = ""


def modelfile(tokenizer: PreTrainedTokenizerBase, settings: GenerationConfig | None) -> str:
    """The whole file, for `ollama create NAME -f Modelfile` in the model's folder.

    Args:
        tokenizer: With the chat template.
        settings: The model's; its ends of text stop an answer.
    """
    lines = ["# ollama create NAME -f Modelfile", "FROM ."]
    around = around_turns(tokenizer) if tokenizer.chat_template else None
    if around is None:
        lines.append(
            "# The chat template can't be said in Ollama's form; see tokenizer_config.json."
        )
    else:
        lines.append(f'TEMPLATE """{ollama_template(around)}"""')
        if around.default_system:
            lines.append(f'SYSTEM """{around.default_system}"""')
    lines += [f'PARAMETER stop "{stop}"' for stop in _stops(tokenizer, settings)]
    return "\n".join(lines) + "\n"


def around_turns(tokenizer: PreTrainedTokenizerBase) -> Around | None:
    """What the template writes around turns; None: not the same around each of them."""
    try:
        writer = TemplateWriter(tokenizer)
        dialogue: list[Message] = [
            {"role": "user", "content": _U1},
            {"role": "assistant", "content": _A1},
            {"role": "user", "content": _U2},
        ]
        pieces = _split(writer.render(dialogue, prompt=True), (_U1, _A1, _U2))
    except (UnrenderableError, ValueError, TypeError):
        return None
    if pieces is None:
        return None
    first, reply, between, last_reply = pieces
    if reply != last_reply:
        return None
    first = _without_bos(first, tokenizer)
    system = _around_system(writer, tokenizer, reply)
    asked = system[1] if system else ""
    # With a default system turn, only what follows an answer shows how a question begins.
    user = _common_ending(first, between)
    around = Around(
        user=user,
        system=system[0] if system else None,
        asked=asked,
        reply=reply,
        end=between.removesuffix(user),
    )
    if system and not _holds(around, writer, tokenizer):
        return None
    if first == user:
        return _sayable(around)
    opening = around.system or ""
    if not system or not (first.startswith(opening) and first.endswith(asked)):
        return None
    default = first[len(opening) : len(first) - len(asked)]
    return _sayable(Around(**{**vars(around), "default_system": default})) if default else None


def ollama_template(around: Around) -> str:
    """In Go's template language, one turn of question and answer."""
    user = around.user
    if around.system is not None:
        system = f"{around.system}{{{{ .System }}}}{around.asked}"
        user = f"{{{{ if .System }}}}{system}{{{{ else }}}}{user}{{{{ end }}}}"
    question = f"{{{{ if .Prompt }}}}{user}{{{{ .Prompt }}}}{{{{ end }}}}"
    return f"{question}{around.reply}{{{{ .Response }}}}{around.end}"


def _around_system(
    writer: TemplateWriter, tokenizer: PreTrainedTokenizerBase, reply: str
) -> tuple[str, str] | None:
    dialogue: list[Message] = [
        {"role": "system", "content": _S},
        {"role": "user", "content": _U1},
    ]
    try:
        pieces = _split(writer.render(dialogue, prompt=True), (_S, _U1))
    except UnrenderableError:
        return None
    if pieces is None or pieces[2] != reply:
        return None
    return _without_bos(pieces[0], tokenizer), pieces[1]


def _holds(around: Around, writer: TemplateWriter, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a conversation with a system turn and two questions is written so, too."""
    dialogue: list[Message] = [
        {"role": "system", "content": _S},
        {"role": "user", "content": _U1},
        {"role": "assistant", "content": _A1},
        {"role": "user", "content": _U2},
    ]
    try:
        text = _without_bos(writer.render(dialogue, prompt=True), tokenizer)
    except UnrenderableError:
        return False
    first = f"{around.system}{_S}{around.asked}{_U1}{around.reply}{_A1}{around.end}"
    return text == f"{first}{around.user}{_U2}{around.reply}"


def _split(text: str, markers: tuple[str, ...]) -> list[str] | None:
    """The text around the markers; None if they don't stand there once each, in order."""
    pieces = []
    for marker in markers:
        before, found, text = text.partition(marker)
        if not found or marker in text:
            return None
        pieces.append(before)
    return [*pieces, text]


def _common_ending(a: str, b: str) -> str:
    length = 0
    while length < min(len(a), len(b)) and a[-1 - length] == b[-1 - length]:
        length += 1
    return a[len(a) - length :]


def _without_bos(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Where the tokenizer begins every text with a token of its own, Ollama does so too."""
    begun = tokenizer("x")["input_ids"][0] == tokenizer.bos_token_id
    return text.removeprefix(str(tokenizer.bos_token)) if begun else text


def _sayable(around: Around) -> Around | None:
    whole = "".join(text or "" for text in vars(around).values())
    return None if "{{" in whole or "}}" in whole or '"""' in whole else around


def _stops(tokenizer: PreTrainedTokenizerBase, settings: GenerationConfig | None) -> list[str]:
    ids = getattr(settings, "eos_token_id", None)
    listed = [ids] if isinstance(ids, int) else list(ids or [])
    if tokenizer.eos_token_id is not None:
        listed.append(tokenizer.eos_token_id)
    texts = (str(tokenizer.convert_ids_to_tokens(int(token_id))) for token_id in listed)
    return list(dict.fromkeys(text for text in texts if text and '"' not in text))
