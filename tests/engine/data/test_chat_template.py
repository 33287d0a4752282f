import pytest

from poros.data.chat_template import PINNED_DATE, ChatTemplate, UnrenderableError
from poros.errors import PorosModelError
from tests.engine.data.tiny_tokenizers import BARE, CHATML, THINKING, tiny_tokenizer

DIALOGUE = [
    {"role": "user", "content": "Q1"},
    {"role": "assistant", "content": "A1"},
    {"role": "user", "content": "Q2"},
    {"role": "assistant", "content": "A2"},
]


def answers(template, messages=DIALOGUE):
    texts = ChatTemplate(tiny_tokenizer(template)).render_answers(messages)
    return [[text.text[start:end] for start, end in text.trained] for text in texts]


BROKEN = [
    (None, "no chat template"),
    ("{% for message in messages %}", "has a syntax error"),
    ("{{ messages.__class__.__mro__ }}", "tries to leave the sandbox"),
    ("{{ messages.append(1) }}", "tries to leave the sandbox"),
    ("{{ messages[0]['nope'] }}", "leaves out what is said"),
    ("{% for m in messages %}{{ m['text'] }}{% endfor %}", "leaves out what is said"),
    ("{{ messages[0]['content'] }}", r"leaves out what is said \(probe-answer-one\)"),
    ("{{ messages[0]['content'] + 5 }}", "can't be rendered"),
    ("{{ 1 // 0 }}", "can't be rendered"),
    ("{{ raise_exception('never') }}", "can't be rendered: never"),
    ("{{ undefined_function() }}", "can't be rendered"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "can't be rendered"),
]


@pytest.mark.parametrize(("template", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_a_template_that_does_not_show_the_dialogue_is_refused(template, problem):
    with pytest.raises(PorosModelError, match=problem) as caught:
        ChatTemplate(tiny_tokenizer(template))
    assert caught.value.exit_code == 4
    assert caught.value.where == "chat template"


def test_a_template_whose_prompt_is_no_beginning_of_the_answer_is_refused():
    template = CHATML.replace("{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>bot\n' }}")
    chat = ChatTemplate(tiny_tokenizer(template))
    assert chat.render_everything(DIALOGUE)[0].trained is None
    with pytest.raises(PorosModelError, match="completions can't be told from prompts") as caught:
        chat.check_answers()
    assert "train_on: everything" in caught.value.remediation


def test_answers_are_found_in_one_text():
    assert answers(CHATML) == [["A1<|im_end|>\n", "A2<|im_end|>\n"]]
    assert answers(BARE) == [["A1\n", "A2\n"]]


def test_a_template_that_rewrites_earlier_answers_gives_a_text_an_answer():
    assert answers(THINKING) == [
        ["<think></think>A1<|im_end|>\n"],
        ["<think></think>A2<|im_end|>\n"],
    ]
    texts = ChatTemplate(tiny_tokenizer(THINKING)).render_answers(DIALOGUE)
    assert "A1<|im_end|>" in texts[1].text
    assert texts[1].text.count("<think>") == 1


def test_turns_after_the_last_answer_are_not_learned():
    (text,) = ChatTemplate(tiny_tokenizer()).render_answers(DIALOGUE[:3])
    assert [text.text[a:b] for a, b in text.trained] == ["A1<|im_end|>\n"]
    assert not text.ends_with_answer


def test_an_answer_to_nothing_is_refused():
    with pytest.raises(UnrenderableError, match="nothing to answer"):
        answers(CHATML, DIALOGUE[1:])


def test_what_the_template_raises_is_told():
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    with pytest.raises(UnrenderableError, match="refuses the row: no system"):
        answers(strict + CHATML, [{"role": "system", "content": "S"}, *DIALOGUE])


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        ("\n{{ strftime_now('%d %b %Y') }}|", f"\n{PINNED_DATE}|"),
        ("{{ strftime_now('%Y-%m-%d') }}|", "2024-07-26|"),
        ("{% if date_string is defined %}{{ date_string }}{% endif %}|", f"{PINNED_DATE}|"),
    ],
)
def test_no_template_sees_todays_date(head, shown):
    chat = ChatTemplate(tiny_tokenizer(head + CHATML))
    assert chat.render(DIALOGUE).startswith(shown + "<|im_start|>user")


def test_the_hash_is_the_templates():
    hashes = {ChatTemplate(tiny_tokenizer(t)).sha256 for t in (CHATML, THINKING, CHATML)}
    assert len(hashes) == 2
