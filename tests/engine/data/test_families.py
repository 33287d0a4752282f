"""What each family's template makes of a conversation, and which of it is learned."""

import pytest

from poros.data.chat_template import ChatTemplate
from poros.data.samples import IGNORED
from poros.data.tokens import tokenize_rows
from poros.errors import PorosDataError, PorosModelError
from poros.rows import Row
from tests.engine.data.families import FAMILIES, Family
from tests.engine.data.tiny_tokenizers import whole

CALL = {"id": "call00001", "function": {"name": "weather", "arguments": '{"city": "Zürich"}'}}
OFFER = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SYSTEM = {"role": "system", "content": "S"}
RESULT = {"role": "tool", "content": "21 C", "name": "weather", "tool_call_id": "call00001"}


def user(text):
    return {"role": "user", "content": text}


def answer(text, **extras):
    return {"role": "assistant", "content": text, **extras}


PLAIN = [user("Q1"), answer("A1"), user("Q2"), answer("A2")]
THINKING = [
    user("Q1"),
    answer("A1", reasoning_content="T1"),
    user("Q2"),
    answer("A2", thinking="T2"),
]
CALLING = [user("Q1"), answer(None, tool_calls=[CALL]), RESULT, answer("A1")]
THINKING_CALLING = [
    user("Q1"), answer(None, tool_calls=[CALL], reasoning="T1"), RESULT, answer("A1")]  # fmt: skip


def prepare(name, messages, tools=None, **options):
    family = FAMILIES[name] if isinstance(name, str) else name
    tokenizer = family.tokenizer()
    fields = {"messages": messages} | ({"tools": tools} if tools else {})
    return tokenizer, tokenize_rows(
        [Row(7, fields, "d.jsonl")], tokenizer, max_seq_length=2000, **options
    )


def learned_spans(tokenizer, sample):
    """The text of each run of tokens that is learned."""
    spans, run = [], []
    for token, label in zip(sample.input_ids, [*sample.labels], strict=True):
        if label == token:
            run.append(token)
        elif run:
            assert label == IGNORED
            spans.append(tokenizer.decode(run))
            run = []
    return [*spans, *([tokenizer.decode(run)] if run else [])]


def spans(name, messages, tools=None):
    tokenizer, prepared = prepare(name, messages, tools)
    return [learned_spans(tokenizer, sample) for sample in prepared.samples]


PLAINLY = {
    "qwen2": [["A1<|im_end|>", "A2<|im_end|>"]],
    "qwen3": [["<think>\n\n</think>\n\nA1<|im_end|>"], ["<think>\n\n</think>\n\nA2<|im_end|>"]],
    # The prompt's newline and the answer's are one token, which no prompt ends inside of.
    "qwen3_5": [["</think>\n\nA1<|im_end|>"], ["</think>\n\nA2<|im_end|>"]],
    "gemma2": [["A1<end>", "A2<end>"]],
    "gemma3": [["A1<end>", "A2<end>"]],
    "gemma4": [["A1<end>", "A2<end>"]],
    "llama": [["A1<eot>", "A2<eot>"]],
    "phi3": [["A1<|end|>", "A2<|end|>"]],
    "phi4": [["A1<|im_end|>", "A2<|im_end|>"]],
    "mistral": [["A1</s>", "A2</s>"]],
    "ministral3": [["A1</s>", "A2</s>"]],
    "glm4": [["\nA1<|user|>", "\nA2<|endoftext|>"]],
    "cohere2": [["<say>A1</say><end>", "<say>A2</say><end>"]],
    "deepseek_r1": [["A1</s>", "A2</s>"]],
    "smollm3": [["A1<|im_end|>", "A2<|im_end|>"]],
}


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_and_the_token_that_ends_them_are_learned_once(name):
    assert spans(name, PLAIN) == PLAINLY[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_beginning_is_marked_once_and_never_learned(name):
    tokenizer, prepared = prepare(name, PLAIN)
    for sample in prepared.samples:
        assert whole(tokenizer, sample).count("<|bos|>") == FAMILIES[name].adds_bos
        assert sample.labels[0] == IGNORED


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - {"gemma2"}))
def test_a_system_turn_is_seen_and_not_learned(name):
    tokenizer, prepared = prepare(name, [SYSTEM, *PLAIN[:2]])
    (sample,) = prepared.samples
    assert learned_spans(tokenizer, sample) == [
        PLAINLY[name][0][0].replace("<|user|>", "<|endoftext|>")
    ]
    assert "S" in whole(tokenizer, sample).replace("</s>", "")


def test_the_default_system_turn_of_a_template_stays_and_is_not_learned():
    tokenizer, prepared = prepare("qwen2", PLAIN)
    assert whole(tokenizer, prepared.samples[0]).startswith(
        "<|im_start|>system\nBe good.<|im_end|>"
    )


THINKINGLY = {
    "qwen3": [["<think>\nT1\n</think>\n\nA1<|im_end|>"], ["<think>\nT2\n</think>\n\nA2<|im_end|>"]],
    "qwen3_5": [["T1\n</think>\n\nA1<|im_end|>"], ["T2\n</think>\n\nA2<|im_end|>"]],
    "ministral3": [["[THINK]T1[/THINK]A1</s>", "[THINK]T2[/THINK]A2</s>"]],
}


@pytest.mark.parametrize("name", THINKINGLY)
def test_thinking_is_learned_as_the_template_writes_it(name):
    assert spans(name, THINKING) == THINKINGLY[name]


def test_an_answer_sees_the_turns_before_it_as_the_template_leaves_them():
    tokenizer, prepared = prepare("qwen3", THINKING)
    assert "T1" not in whole(tokenizer, prepared.samples[1])
    assert prepared.report.num_split_rows == 1


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - THINKINGLY.keys()))
def test_thinking_that_a_template_leaves_out_is_refused(name):
    with pytest.raises(
        PorosDataError, match=r"leaves out the thinking .* of messages\[1\]"
    ) as caught:
        prepare(name, THINKING)
    assert caught.value.where == "d.jsonl:7"
    with pytest.raises(PorosDataError, match=r"leaves out the thinking"):
        prepare(name, THINKING[:2], train_on="everything")


_CALLED = '<call>weather {"city": "Zürich"}</call>'
CALLINGLY = {
    "qwen2": [[_CALLED + "<|im_end|>", "A1<|im_end|>"]],
    "qwen3": [
        [f"<think>\n\n</think>\n\n{_CALLED}<|im_end|>", "<think>\n\n</think>\n\nA1<|im_end|>"]
    ],
    "qwen3_5": [[f"</think>\n\n{_CALLED}<|im_end|>", "</think>\n\nA1<|im_end|>"]],
    "gemma4": [[_CALLED + "<result>", "A1<end>"]],
    "llama": [[_CALLED + "<eot>", "A1<eot>"]],
    "mistral": [['[CALLS][{"name": "weather", "arguments": {"city": "Zürich"}}]</s>', "A1</s>"]],
    "glm4": [["\n" + _CALLED + "<|observation|>", "\nA1<|endoftext|>"]],
}


@pytest.mark.parametrize("name", CALLINGLY)
def test_calls_are_learned_and_tools_and_results_are_not(name):
    assert spans(name, CALLING, OFFER) == CALLINGLY[name]
    tokenizer, prepared = prepare(name, CALLING, OFFER)
    text = whole(tokenizer, prepared.samples[0])
    assert '"parameters": {"type": "object"}' in text
    assert "21 C" in text


@pytest.mark.parametrize("name", sorted(FAMILIES.keys() - CALLINGLY.keys() - {"smollm3"}))
def test_tools_that_a_template_leaves_out_are_refused(name):
    with pytest.raises(PorosDataError, match=r"leaves out tools, d\.jsonl") as caught:
        prepare(name, CALLING, OFFER)
    assert caught.value.where == "d.jsonl:7"


def test_tools_under_their_other_name_are_seen_and_calls_that_are_not_are_refused():
    tokenizer, prepared = prepare("smollm3", PLAIN, OFFER)
    assert '"name": "weather"' in whole(tokenizer, prepared.samples[0])
    with pytest.raises(PorosDataError, match=r"leaves out tool_calls of messages\[1\]"):
        prepare("smollm3", CALLING, OFFER)


def test_results_that_a_template_leaves_out_are_refused():
    with pytest.raises(PorosDataError, match="leaves out turns of tools"):
        prepare("phi3", [user("Q"), RESULT, answer("A")])


def test_thinking_before_a_call_is_learned_under_the_name_that_the_template_has():
    assert spans("gemma4", THINKING_CALLING, OFFER) == [
        [f"<think>T1</think>{_CALLED}<result>", "A1<end>"]]  # fmt: skip
    assert spans("qwen3", THINKING_CALLING, OFFER)[0][0] == (
        f"<think>\nT1\n</think>\n\n{_CALLED}<|im_end|>")  # fmt: skip


def test_arguments_are_text_where_the_template_takes_text_only():
    (texts,) = spans("deepseek_r1", CALLING)
    assert texts == ['<call>function weather\n{"city": "Zürich"}</call></s>', "A1</s>"]


def test_words_beside_a_call_that_the_template_leaves_out_are_refused():
    said = [user("Q1"), answer("Let me see.", tool_calls=[CALL]), RESULT, answer("A1")]
    assert spans("qwen2", said, OFFER)[0][0] == f"Let me see.{_CALLED}<|im_end|>"
    with pytest.raises(PorosDataError, match=r"leaves out a part of the content of messages\[1\]"):
        prepare("llama", said, OFFER)


def test_a_thought_in_the_content_that_the_template_cuts_out_is_refused():
    inline = [user("Q"), answer("<think>T</think>A")]
    assert spans("smollm3", inline) == [["<think>T</think>A<|im_end|>"]]
    assert spans("qwen3_5", [user("Q"), answer("A", reasoning_content="T")])
    with pytest.raises(PorosDataError, match=r"a part of the content of messages\[1\]"):
        prepare("deepseek_r1", inline)


REFUSALS = [
    ("gemma2", [SYSTEM, *PLAIN[:2]], None, "System role not supported"),
    (
        "gemma2",
        [user("Q"), user("Q"), answer("A")],
        None,
        "roles must alternate user and assistant",
    ),
    ("llama", [user("Q"), answer("", tool_calls=[CALL, CALL])], OFFER, "one call only"),
    ("mistral", [user("Q"), answer("", tool_calls=[CALL | {"id": "1"}])], OFFER, "length 9"),
]


@pytest.mark.parametrize(("name", "messages", "tools", "said"), REFUSALS, ids=range(4))
@pytest.mark.parametrize("train_on", ["completions", "everything"])
def test_what_a_template_raises_is_one_line_with_file_and_line(
    name, messages, tools, said, train_on
):
    with pytest.raises(PorosDataError, match="the chat template refuses the row: ") as caught:
        prepare(name, messages, tools, train_on=train_on)
    assert caught.value.message.endswith(said) or said in caught.value.message
    assert caught.value.where == "d.jsonl:7"
    assert "\n" not in str(caught.value)


def test_the_system_turn_that_mistral_shows_with_the_last_question_is_learned_after():
    tokenizer, prepared = prepare("mistral", [SYSTEM, *PLAIN])
    assert [whole(tokenizer, sample) for sample in prepared.samples] == [
        "<|bos|>[INST]S\n\nQ1[/INST]A1</s>",
        "<|bos|>[INST]Q1[/INST]A1</s>[INST]S\n\nQ2[/INST]A2</s>",
    ]
    with pytest.raises(PorosDataError, match="leaves out the system turn"):
        prepare("mistral", [SYSTEM, *PLAIN], train_on="everything")


@pytest.mark.parametrize(
    ("name", "surplus"),
    [
        ("deepseek_r1", "<think>\n"),
        ("gemma4", "<think></think>"),
        ("cohere2", "<think></think>"),
        ("qwen3_5", ""),
    ],
)
def test_what_prompts_have_and_answers_lack_is_reported(name, surplus):
    assert prepare(name, PLAIN)[1].report.prompt_surplus == surplus


def test_a_template_that_opens_an_answer_after_the_last_one_is_refused():
    template = FAMILIES["llama"].template.replace("{% if add_generation_prompt %}", "{% if true %}")
    with pytest.raises(PorosModelError, match="opens another answer after the last one"):
        prepare(Family(template, "<eot>"), PLAIN)


def test_an_answer_that_holds_the_token_of_its_end_is_refused():
    with pytest.raises(PorosDataError, match=r"messages\[1\] ends more than once: '<\|im_end\|>'"):
        prepare("qwen2", [user("Q"), answer("A<|im_end|>")])


def test_the_end_is_appended_where_an_answer_ends_with_another_token():
    # </call> is no end, though it is a token.
    tokenizer, prepared = prepare("glm4", [user("Q"), answer("", tool_calls=[CALL])])
    assert learned_spans(tokenizer, prepared.samples[0]) == ["\n" + _CALLED + "<|endoftext|>"]


def test_a_template_of_its_own_for_tools_is_taken_for_them():
    tokenizer = FAMILIES["qwen2"].tokenizer()
    with_tools = tokenizer.chat_template
    tokenizer.chat_template = {"default": FAMILIES["smollm3"].template, "tool_use": with_tools}
    chat = ChatTemplate(tokenizer)
    assert "Offer: " in chat.render(PLAIN, tools=OFFER)
    assert "Be good." not in chat.render(PLAIN)
    assert chat.sha256 != ChatTemplate(FAMILIES["smollm3"].tokenizer()).sha256
