"""`poros chat` and `poros generate`: the streamed model's own words, on a plain terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from poros.answering import chat as chat_module
from poros.answering import generate as generate_module
from poros.answering.chat import Chat, run_chat
from poros.answering.generate import prompt_ids, question, run_generate
from poros.answering.load import load_speaker
from poros.answering.speaker import Sampling, Speaker, Stop, TextStream
from poros.answering.told import plain
from poros.errors import (
    PorosConfigError,
    PorosDataError,
    PorosHostMemoryError,
    PorosModelError,
    PorosOOMError,
)
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.export.adapters import silent, write_adapter
from tests.engine.loading.tiny_models import CPU, stock_4bit

QUESTION = "Who are you?"
SHORT = Sampling(max_new_tokens=6)


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory, adapter: Path) -> Speaker:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POROS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_speaker(str(adapter), emit=silent, quantization="bf16")


@pytest.fixture
def here(speaker: Speaker, monkeypatch: pytest.MonkeyPatch) -> Speaker:
    for module in (chat_module, generate_module):
        monkeypatch.setattr(module, "load_speaker", lambda adapter, **options: speaker)
    return speaker


def stock_answer(base: Path, ids: list[int], adapter: Path | None) -> str:
    from peft import PeftModel

    model = stock_4bit(base)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    ids_1T = torch.tensor([ids])
    made = model.generate(
        input_ids=ids_1T,
        attention_mask=torch.ones_like(ids_1T),
        do_sample=False,
        max_new_tokens=6,
        eos_token_id=[2, tiny_tokenizer().eos_token_id],
    )
    return tiny_tokenizer().decode(made[0, len(ids) :].tolist(), skip_special_tokens=True)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_base_and_adapter_say_what_stocks_resident_models_say(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    speaker = load_speaker(str(adapter), emit=silent)
    ids = prompt_ids(speaker, question(QUESTION, None))
    said: list[str] = []
    ours = speaker.answer(ids, SHORT, show=said.append)
    alone = speaker.answer(ids, SHORT, adapted=False)
    assert ours == stock_answer(base, ids, adapter)
    assert alone == stock_answer(base, ids, None)
    assert ours != alone
    assert "".join(said) == ours
    assert speaker.answer(ids, SHORT) == ours  # the adapter is on again


def test_drawn_answers_hang_on_the_seed(speaker: Speaker) -> None:
    ids = prompt_ids(speaker, question(QUESTION, None))
    drawn = [
        speaker.answer(ids, Sampling(max_new_tokens=6, temperature=2.0, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_an_answer_ends_where_the_context_does(speaker: Speaker) -> None:
    ids = [5] * 253
    assert speaker.context_tokens == 256
    text = speaker.answer(ids, Sampling(max_new_tokens=50))
    assert len(speaker.tokenizer(text)["input_ids"]) <= 3 * 4
    with pytest.raises(PorosDataError, match="the model's context has 256"):
        prompt_ids(speaker, question("x" * 300, None))


def test_text_comes_in_whole_characters() -> None:
    tokenizer, said = tiny_tokenizer(), list[str]()
    text = "Für 3 €\nein 🦊!"
    stream = TextStream(tokenizer, said.append)
    stream.put(torch.tensor([[1, 2, 3]]))
    for token in tokenizer(text)["input_ids"]:
        stream.put(torch.tensor([token]))
    stream.end()
    assert "".join(said) == text
    assert not any("\ufffd" in part for part in said)


def test_what_would_drive_the_terminal_is_escaped() -> None:
    assert plain("a\x1b[2J\tb\nc\x07") == "a\\x1b[2J\tb\nc\\x07"


def test_generate_prints_answers_alone(here: Speaker, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = {"max_new_tokens": 6}
    expected = here.answer(prompt_ids(here, question(QUESTION, None)), SHORT)
    named = {"system": None, "sampling": sampling}
    assert run_generate("a", prompts=[QUESTION], compare=False, as_json=False, **named) == 0
    assert capsys.readouterr().out == plain(expected) + "\n"
    run_generate("a", prompts=[QUESTION, "Why?"], compare=True, as_json=False, **named)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in ("base:", "adapter:")] == ["base:", "adapter:"] * 2
    run_generate("a", prompts=[QUESTION], compare=True, as_json=True, **named)
    answers = json.loads(capsys.readouterr().out)["answers"]
    assert [answer["adapter"] for answer in answers] == [expected]
    assert answers[0]["base"] != expected


def test_a_prompt_may_come_from_stdin(
    here: Speaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUESTION + "\n"))
    named = {"system": None, "sampling": {"max_new_tokens": 2}}
    run_generate("a", prompts=["-"], compare=False, as_json=True, **named)
    assert json.loads(capsys.readouterr().out)["answers"][0]["prompt"] == QUESTION


def talk(text: str, monkeypatch: pytest.MonkeyPatch, **options: object) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    named = {"system": None, "compare": False, "sampling": {"max_new_tokens": 4}} | options
    return run_chat("a", **named)


def test_a_conversation_is_remembered_until_it_is_reset(
    here: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    answer = here.answer

    def counted(ids: list[int], *rest: object, **named: object) -> str:
        asked.append(len(ids))
        return answer(ids, *rest, **named)

    monkeypatch.setattr(here, "answer", counted)
    assert talk("a\n\nb\n/reset\na\n/what\n/exit\nnever\n", monkeypatch, system="Be brief.") == 0
    assert len(asked) == 3
    assert asked[1] > asked[0] == asked[2]
    shown = capsys.readouterr()
    assert "context 256 tokens" in shown.err
    assert "/reset begins anew" in shown.err
    assert talk("a\n", monkeypatch) == 0  # the end of stdin is an end


def test_a_full_context_is_said_and_the_conversation_goes_on(
    here: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(f"{'x' * 400}\n{'y' * 200}\n", monkeypatch, sampling={"max_new_tokens": 40})
    said = capsys.readouterr().err
    assert "the model's context has 256, the prompt -> /reset begins anew" in said
    assert "of the context's 256 tokens are used" in said


def test_compare_asks_the_base_first(
    here: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk("a\n", monkeypatch, compare=True)
    shown = capsys.readouterr().out
    assert shown.startswith("base: ")
    assert "\nadapter: " in shown


def test_each_side_of_a_comparison_remembers_its_own_answers(
    speaker: Speaker, capsys: pytest.CaptureFixture[str]
) -> None:
    talked = Chat(speaker, "Be brief.", SHORT, compare=True)
    for text in ("a", "b"):
        talked.take_turn(text)
    said = {who: talked.talks.said(who) for who in ("base", "adapter")}
    for who, turns in said.items():
        assert [turn["role"] for turn in turns[1:]] == ["user", "assistant"] * 2
        first = speaker.answer(
            prompt_ids(speaker, question("a", "Be brief.")), SHORT, adapted=who == "adapter"
        )
        again = speaker.answer(prompt_ids(speaker, turns[:4]), SHORT, adapted=who == "adapter")
        assert [turn["content"] for turn in turns[2::2]] == [first, again]
    assert said["base"] != said["adapter"]
    capsys.readouterr()
    talked.talks.begin_anew()
    assert len(talked.talks.said("base")) == 1


def test_ctrl_c_ends_the_answer_and_not_the_conversation(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talked = Chat(speaker, None, Sampling(max_new_tokens=100))
    shown: list[str] = []

    def interrupt(text: str) -> None:
        shown.append(text)
        if len(shown) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(chat_module, "shown", interrupt)
    before = signal.getsignal(signal.SIGINT)
    talked.take_turn("a")
    assert len(shown) < 10
    assert "(stopped)" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    said = talked.talks.said("adapter")
    assert [message["role"] for message in said] == ["user", "assistant"]
    monkeypatch.undo()
    ids = prompt_ids(speaker, question(QUESTION, None))
    assert speaker.answer(ids, SHORT) == speaker.answer(ids, SHORT, stop=Stop())


def full() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")


def test_an_answer_that_runs_out_of_memory_is_made_again_under_a_smaller_plan(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path))
    told: list[str] = []
    options = {"quantization": "bf16", "vram_budget": "1"}
    talker = load_speaker(str(adapter), emit=lambda e: told.append(str(e)), **options)
    assert talker.memory.placement.plan.resident == (0, 1, 2)
    ids = prompt_ids(talker, question(QUESTION, None))
    expected = talker.answer(ids, SHORT)
    told.clear()
    shown, num_puts, put = list[str](), 0, TextStream.put

    def short_of_memory(stream: TextStream, value: torch.Tensor) -> None:
        nonlocal num_puts
        num_puts += 1
        if num_puts in (4, 8, 9):  # half way, then again at once
            raise full()
        put(stream, value)

    monkeypatch.setattr(TextStream, "put", short_of_memory)
    assert talker.answer(ids, SHORT, show=shown.append) == expected
    assert "".join(shown) == expected
    changes = ["1 resident blocks", "0 resident blocks", "head to the host"]
    assert len(told) == 3
    assert all(change in line for change, line in zip(changes, told, strict=True)), told
    monkeypatch.undo()
    assert talker.answer(ids, SHORT) == expected


def test_memory_that_is_never_enough_is_told_in_a_line(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out(**named: object) -> None:
        raise full()

    monkeypatch.setattr(speaker.model, "generate", out)
    with pytest.raises(PorosOOMError, match="--max-new-tokens") as caught:
        speaker.answer([1, 2], SHORT)
    assert (caught.value.phase, caught.value.asked_bytes) == ("answer", 2 * 2**30)
    talked = Chat(speaker, None, SHORT)
    talked.take_turn("a")  # the conversation goes on
    assert talked.talks.said("adapter") == []
    assert "/reset begins anew" in capsys.readouterr().err
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(speaker.model, "generate", mock.Mock(side_effect=error))
    with pytest.raises(PorosHostMemoryError, match="the computer has too little memory"):
        speaker.answer([1, 2], SHORT)


def test_a_model_without_turns_can_go_on_but_not_chat(
    here: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "tokenizer", tiny_tokenizer(template=None))
    assert prompt_ids(here, question("ab", None)) == here.tokenizer("ab")["input_ids"]
    with pytest.raises(PorosConfigError, match="no chat template"):
        prompt_ids(here, question("ab", "Be brief."))
    with pytest.raises(PorosModelError, match="no chat template"):
        talk("a\n", monkeypatch)
    with pytest.raises(PorosDataError, match="the prompt is empty"):
        prompt_ids(here, question("", None))


def test_a_runs_own_settings_load_its_base(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text('{"format": 1, "run_id": "abcdef"}')
    (run / "config.yaml").write_text("quantization: bf16\ndataset: x.jsonl\nnf4_cache: auto\n")
    (run / "adapter").symlink_to(adapter)
    seen: list[object] = []
    dense = load_speaker(str(run), emit=seen.append)
    assert not hasattr(dense.model.base_model.model, "hf_quantizer")
    ids = prompt_ids(dense, question(QUESTION, None))
    least = load_speaker(str(run), emit=silent, vram_budget="min", device="cpu")
    assert least.answer(ids, SHORT) == dense.answer(ids, SHORT)
    assert least.device == CPU
    with pytest.raises(PorosConfigError, match="device"):
        load_speaker(str(run), emit=silent, device="tpu")


def test_adapters_that_cannot_be_streamed_are_refused(adapter: Path, base: Path, tmp_path: Path):
    write_adapter(tmp_path / "dora", base, use_dora=True)
    with pytest.raises(PorosModelError, match=r"use_dora can't be streamed.*poros export"):
        load_speaker(str(tmp_path / "dora"), emit=silent)
