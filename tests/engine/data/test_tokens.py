import pytest

from poros.data.samples import IGNORED
from poros.data.tokens import choose_pad_token, tokenize_rows
from poros.errors import PorosDataError, PorosModelError
from poros.rows import BadLines, Row
from tests.engine.data.tiny_tokenizers import BARE, THINKING, learned, tiny_tokenizer, whole


def rows(*fields):
    return [Row(i, f, "data.jsonl") for i, f in enumerate(fields, start=1)]


def alpaca(question, answer):
    return {"instruction": question, "output": answer}


def messages(*pairs):
    return {"messages": [{"role": role, "content": text} for role, text in pairs]}


TWO_TURNS = messages(("user", "Q1"), ("assistant", "A1"), ("user", "Q2"), ("assistant", "A2"))


def tokenize(*fields, tokenizer=None, max_seq_length=200, **options):
    tokenizer = tokenizer or tiny_tokenizer()
    return tokenize_rows(rows(*fields), tokenizer, max_seq_length=max_seq_length, **options)


def test_only_the_answer_and_the_end_of_its_turn_are_learned():
    tokenizer = tiny_tokenizer()
    (sample,) = tokenize(alpaca("Why?", "Naïve 猫.")).samples
    assert learned(tokenizer, sample) == "Naïve 猫.<|im_end|>"
    assert whole(tokenizer, sample) == (
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nNaïve 猫.<|im_end|>\n"
    )


def test_every_answer_of_a_conversation_is_learned():
    (sample,) = tokenize(TWO_TURNS).samples
    assert learned(tiny_tokenizer(), sample) == "A1<|im_end|>A2<|im_end|>"


MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_what_is_learned_is_what_a_template_with_marks_says():
    tokenizer = tiny_tokenizer(MARKED)
    turns = [("system", "S"), ("user", "Q1"), ("assistant", "A 猫 1"), ("user", "\nQ2"),
             ("assistant", " A2 "), ("user", "Q3")]  # fmt: skip
    (sample,) = tokenize(messages(*turns)).samples
    marked = tokenizer.apply_chat_template(
        messages(*turns)["messages"], return_dict=True, return_assistant_tokens_mask=True
    )
    assert sample.input_ids.tolist() == marked["input_ids"]
    assert [int(label != IGNORED) for label in sample.labels] == marked["assistant_masks"]


def test_a_token_of_prompt_and_answer_together_is_not_learned():
    tokenizer = tiny_tokenizer()
    (sample,) = tokenize(alpaca("Q", "\nA")).samples
    both = tokenizer.convert_tokens_to_ids("\n\n")
    assert both in sample.input_ids
    assert learned(tokenizer, sample) == "A<|im_end|>"


def test_white_space_tokens_after_the_end_of_a_turn_are_not_learned():
    tokenizer = tiny_tokenizer(tiny_tokenizer().chat_template.replace("+ '\n' }}", "+ '\n\n' }}"))
    (sample,) = tokenize(alpaca("Q", "A\n\nB"), tokenizer=tokenizer).samples
    assert sample.input_ids[-1] == tokenizer.convert_tokens_to_ids("\n\n")
    assert learned(tokenizer, sample) == "A\n\nB<|im_end|>"


def test_everything_is_learned_on_request_but_the_first_token():
    (sample,) = tokenize(TWO_TURNS, train_on="everything").samples
    assert sample.labels[0] == IGNORED
    assert sample.labels[1:] == sample.input_ids[1:]
    assert sample.num_label_tokens == len(sample) - 1


def test_answers_that_the_template_rewrites_become_samples_of_their_own():
    prepared = tokenize(TWO_TURNS, TWO_TURNS,
                        tokenizer=tiny_tokenizer(THINKING))  # fmt: skip
    texts = [learned(tiny_tokenizer(), sample) for sample in prepared.samples]
    assert texts == ["<think></think>A1<|im_end|>", "<think></think>A2<|im_end|>"] * 2
    assert [sample.line for sample in prepared.samples] == [1, 1, 2, 2]
    assert [sample.sample_id for sample in prepared.samples] == [0, 1, 2, 3]
    assert prepared.report.num_split_rows == 2


def test_a_template_without_turn_ends_gets_one_and_one_bos():
    tokenizer = tiny_tokenizer(BARE, eos="<|endoftext|>", add_bos=True)
    (sample,) = tokenize(alpaca("Q", "A"), tokenizer=tokenizer).samples
    assert whole(tokenizer, sample) == "<|bos|>user: Q\nassistant: A\n<|endoftext|>"
    assert learned(tokenizer, sample) == "A\n<|endoftext|>"


@pytest.mark.parametrize("text", ["once", "<|bos|>once", "once<|endoftext|>"])
def test_plain_text_has_one_bos_and_one_end(text):
    tokenizer = tiny_tokenizer(None, eos="<|endoftext|>", add_bos=True)
    (sample,) = tokenize({"text": text}, tokenizer=tokenizer).samples
    assert whole(tokenizer, sample) == "<|bos|>once<|endoftext|>"
    assert learned(tokenizer, sample) == "once<|endoftext|>"


def length_of(answer):
    return len(tokenize(alpaca("Q", answer)).samples[0])


@pytest.mark.parametrize("policy", ["truncate", "drop", "error"])
@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_the_length_policy_holds_at_its_boundary(policy, excess):
    limit = length_of("answer") - excess
    run = lambda: tokenize(  # noqa: E731  the call is made in one of two places
        alpaca("Q", "a"), alpaca("Q", "answer"), alpaca("Q", "b"),
        max_seq_length=limit, overlong=policy)  # fmt: skip
    if excess == 1 and policy == "error":
        with pytest.raises(PorosDataError, match=f"{limit + 1} tokens, more than") as caught:
            run()
        assert caught.value.where == "data.jsonl:2"
        return
    prepared = run()
    kept = [1, 3] if excess == 1 and policy == "drop" else [1, 2, 3]
    assert [sample.line for sample in prepared.samples] == kept
    assert prepared.report.num_truncated == (excess == 1 and policy == "truncate")
    assert prepared.report.max_tokens == limit + excess
    assert max(map(len, prepared.samples)) <= limit
    assert prepared.report.drop_reasons == ({"too_long": 1} if len(kept) == 2 else {})


def test_rows_without_labels_are_dropped_with_their_lines():
    prepared = tokenize(
        messages(("user", "Q"), ("assistant", "A")),
        messages(("user", "only a question")),
        messages(("user", "long" * 100), ("assistant", "cut away")),
        messages(("user", "Q"), ("assistant", "B")),
    )
    assert [sample.line for sample in prepared.samples] == [1, 4]
    assert prepared.report.dropped == {"no_labels": [2, 3]}
    assert all(sample.num_label_tokens > 0 for sample in prepared.samples)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (alpaca("Q", ""), "empty"),
        (alpaca("Q", " \n"), "empty"),
        (messages(), "empty"),
        ({"text": ""}, "empty"),
        ({"text": " \n\t"}, "empty"),
        ({"text": "<|bos|><|im_end|>"}, "empty"),
        (messages(("user", "Q")), "no_labels"),
    ],
    ids=range(7),
)
def test_empty_samples_never_reach_the_model(fields, reason):
    with pytest.raises(PorosDataError, match="0 usable samples of 2 rows") as caught:
        tokenize(fields, fields, source="data.jsonl")
    assert f"{reason} 2 (lines 1, 2)" in caught.value.message
    assert caught.value.where == "data.jsonl"
    assert caught.value.exit_code == 3


def test_no_rows_at_all_are_refused():
    with pytest.raises(PorosDataError, match=r"0 usable samples of 0 rows.*the source is empty"):
        tokenize(source="data.jsonl")


def test_drifting_rows_are_refused_or_left_out_and_listed():
    bad = [alpaca("Q", None), {"instruction": "Q"}, messages(("user", "Q"))]
    with pytest.raises(PorosDataError, match="found null, expected text") as caught:
        tokenize(alpaca("Q", "A"), *bad)
    assert caught.value.where == "data.jsonl:2"
    prepared = tokenize(alpaca("Q", "A"), *bad, bad_lines=BadLines("skip"))
    assert prepared.report.num_samples == 1
    assert prepared.report.drop_reasons == {"bad_line": 3}
    assert [line.split(": ")[0] for line in prepared.report.bad_lines] == [
        "data.jsonl:2", "data.jsonl:3", "data.jsonl:4"]  # fmt: skip


def test_a_row_that_the_template_refuses_is_a_bad_line():
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer = tiny_tokenizer(strict + tiny_tokenizer().chat_template)
    system = messages(("system", "S"), ("user", "Q"), ("assistant", "A"))
    with pytest.raises(PorosDataError, match="no system") as caught:
        tokenize(TWO_TURNS, system, tokenizer=tokenizer)
    assert caught.value.where == "data.jsonl:2"


def test_a_token_without_an_embedding_is_refused_before_the_model_sees_it():
    tokenizer = tiny_tokenizer()
    assert tokenize(alpaca("Q", "A"), vocab_size=len(tokenizer)).samples
    with pytest.raises(
        PorosModelError, match=r"token 259 \('<\|im_end\|>'\).* 259 tokens"
    ) as caught:
        tokenize(alpaca("Q", "A"), vocab_size=259)
    assert caught.value.where == "data.jsonl:1"
    assert caught.value.exit_code == 4


def test_conversations_need_a_template_and_plain_text_does_not():
    tokenizer = tiny_tokenizer(None)
    assert tokenize({"text": "once"}, tokenizer=tokenizer).report.template_sha256 == ""
    with pytest.raises(PorosModelError, match="no chat template"):
        tokenize(alpaca("Q", "A"), tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("pad", "eos", "vocab_size", "expected"),
    [
        ("<|pad|>", "<|im_end|>", 261, (260, "pad_token")),
        ("<|pad|>", "<|im_end|>", 260, (259, "eos_token")),
        (None, "<|im_end|>", 261, (259, "eos_token")),
        (None, None, 261, (0, "token 0")),
    ],
)
def test_the_pad_token_is_chosen_by_a_fixed_policy(pad, eos, vocab_size, expected):
    tokenizer = tiny_tokenizer(pad=pad, eos=eos)
    assert choose_pad_token(tokenizer, vocab_size) == expected
    report = tokenize({"text": "once"}, tokenizer=tokenizer).report
    assert report.pad_policy == (expected[1] if vocab_size == 261 else "pad_token")


def test_the_report_counts_and_the_event_repeats_it():
    prepared = tokenize(alpaca("Q", "A"), alpaca("Q", ""), alpaca("Q", "B" * 500), split="train")
    event = prepared.report.event()
    assert (event.num_rows, event.num_samples, event.num_dropped) == (3, 2, 1)
    assert (event.num_truncated, event.shape, event.split) == (1, "alpaca", "train")
    assert event.drop_reasons == {"empty": 1}
    assert event.num_label_tokens == sum(s.num_label_tokens for s in prepared.samples)
    assert event.max_tokens > 500
    assert len(prepared.report.template_sha256) == 64


def test_the_digest_covers_tokens_labels_and_their_bounds():
    one = tokenize(alpaca("Q", "A"), alpaca("Q", "B"))
    assert one.digest == tokenize(alpaca("Q", "A"), alpaca("Q", "B")).digest
    others = [
        tokenize(alpaca("Q", "B"), alpaca("Q", "A")),
        tokenize(alpaca("Q", "A"), alpaca("Q", "B"), train_on="everything"),
        tokenize(alpaca("Q", "A")),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 4


def test_many_rows_keep_their_order():
    fields = [alpaca("Q", f"answer {i}") for i in range(600)]
    done = []
    prepared = tokenize(*fields, progress=done.append)
    assert [s.line for s in prepared.samples] == list(range(1, 601))
    assert learned(tiny_tokenizer(), prepared.samples[599]) == "answer 599<|im_end|>"
    assert done[-1] == 600
