"""The chat template in Ollama's form writes what the template itself writes, or isn't given."""

from __future__ import annotations

import re

import pytest

from poros.export.modelfile import around_turns, modelfile, ollama_template
from tests.engine.data.families import FAMILIES
from tests.engine.data.tiny_tokenizers import tiny_tokenizer

QUESTIONS, ANSWER = ("Who?", "And why?"), "A keeper."
# A turn's header, or the system turn, is not the same in each place.
UNSAYABLE = {"qwen3_5", "gemma4", "mistral", "cohere2", "deepseek_r1", "glm4"}


def as_ollama(template: str, system: str) -> str:
    """What Ollama makes of two questions: each turn through the template, the last one cut."""
    turns = [(system, QUESTIONS[0], ANSWER), ("", QUESTIONS[1], None)]
    text = ""
    for system_text, prompt, response in turns:
        turn = re.sub(
            r"\{\{ if \.System \}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}",
            lambda found, given=system_text: found[1 if given else 2],
            template,
            flags=re.DOTALL,
        )
        turn = re.sub(r"\{\{ if \.Prompt \}\}(.*?)\{\{ end \}\}", r"\1", turn, flags=re.DOTALL)
        turn = turn.replace("{{ .System }}", system_text).replace("{{ .Prompt }}", prompt)
        before, _, after = turn.partition("{{ .Response }}")
        text += before if response is None else before + response + after
    assert "{{" not in text
    return text


@pytest.mark.parametrize("family", FAMILIES)
def test_two_turns_are_written_as_the_template_writes_them(family: str) -> None:
    tokenizer = FAMILIES[family].tokenizer()
    around = around_turns(tokenizer)
    assert (around is None) == (family in UNSAYABLE)
    if around is None:
        assert "TEMPLATE" not in modelfile(tokenizer, None)
        return
    dialogue = [
        {"role": "user", "content": QUESTIONS[0]},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": QUESTIONS[1]},
    ]
    for system in ("", "Be brief.") if around.system is not None else ("",):
        said = system or around.default_system
        turns = [{"role": "system", "content": system}] if system else []
        expected = tokenizer.apply_chat_template(
            turns + dialogue, tokenize=False, add_generation_prompt=True
        ).removeprefix(tokenizer.bos_token)
        assert as_ollama(ollama_template(around), said) == expected


def test_the_default_system_turn_is_ollamas_system() -> None:
    text = modelfile(FAMILIES["qwen2"].tokenizer(), None)
    assert '\nSYSTEM """Be good."""\n' in text
    assert '\nPARAMETER stop "<|im_end|>"\n' in text


def test_a_beginning_that_the_tokenizer_does_not_write_stays() -> None:
    # SmolLM2's token of the beginning is the one that every turn begins with.
    tokenizer = tiny_tokenizer(bos="<|im_start|>")
    around = around_turns(tokenizer)
    assert around is not None
    assert around.system == "<|im_start|>system\n"
    assert around.user == "<|im_start|>user\n"


def test_what_would_be_read_as_gos_template_is_left_out() -> None:
    braces = "{% for m in messages %}{{ '{' ~ '{' ~ m.role ~ ':' ~ m.content ~ '\n' }}{% endfor %}"
    assert around_turns(tiny_tokenizer(braces)) is None
    assert "TEMPLATE" not in modelfile(tiny_tokenizer(None), None)
