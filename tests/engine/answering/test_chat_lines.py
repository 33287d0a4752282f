"""`poros chat --json-lines`: what a program is told, line by line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from poros.answering import chat_lines
from poros.answering.chat_lines import LineChat, run_chat_lines
from poros.answering.generate import prompt_ids, question
from poros.answering.load import load_speaker
from poros.answering.speaker import Sampling, Speaker, Stop
from poros.errors import PorosModelError, PorosOOMError
from tests.engine.export.adapters import write_adapter, write_base

SHORT = {"max_new_tokens": 4}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Speaker:
    base = write_base(tmp_path_factory.mktemp("base") / "base", tie_word_embeddings=False)
    adapter: Path = write_adapter(tmp_path_factory.mktemp("adapter") / "adapter", base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POROS_CACHE", str(tmp_path_factory.mktemp("cache")))
        return load_speaker(str(adapter), emit=lambda event: None, quantization="bf16")


def talk(
    speaker: Speaker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *orders: dict[str, Any] | str,
    **options: Any,
) -> list[dict[str, Any]]:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in orders]
    monkeypatch.setattr(chat_lines, "load_speaker", lambda adapter, **more: speaker)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
    named = {"system": None, "compare": False, "sampling": SHORT} | options
    assert run_chat_lines("a", **named) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_answer_comes_in_bits_and_whole(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = talk(speaker, monkeypatch, capsys, {"say": "Who are you?"})
    ids = prompt_ids(speaker, question("Who are you?", None))
    expected = speaker.answer(ids, Sampling(**SHORT))
    assert told[0] == {"event": "ready", "base": speaker.base, "context_tokens": 256}
    assert "".join(line["text"] for line in told if line["event"] == "text") == expected
    assert told[-2] == {"event": "answered", "who": "adapter", "text": expected, "stopped": False}
    assert told[-1]["event"] == "turn_finished"
    assert told[-1]["used_tokens"] > len(ids)


def test_turns_are_remembered_until_reset_and_wrong_lines_change_nothing(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = {"say": "a"}
    told = talk(
        speaker, monkeypatch, capsys,
        first, "{", {"say": " "}, {"say": "x" * 400}, {"say": "b", "compare": True},
        {"reset": True}, first, '{"else": 1}',
    )  # fmt: skip
    used = [line["used_tokens"] for line in told if line["event"] == "turn_finished"]
    assert used[1] > used[0] == used[2]
    refused = [line["message"] for line in told if line["event"] == "refused"]
    assert len(refused) == 4
    assert "context has 256" in refused[2]
    assert [line["who"] for line in told if line["event"] == "answered"] == [
        "adapter", "base", "adapter", "adapter",
    ]  # fmt: skip
    assert {"event": "reset"} in told


def test_a_stop_ends_the_answer_that_was_asked_before_it(speaker: Speaker) -> None:
    told: list[dict[str, Any]] = []
    chat = LineChat(speaker, None, Sampling(max_new_tokens=100), told.append)
    chat.read(io.StringIO('{"say": "a"}\n{"stop": true}\n{"say": "b"}\n'))
    chat._sampling = Sampling(**SHORT)
    chat.run()
    assert [line["stopped"] for line in told if line["event"] == "turn_finished"] == [True, False]


def test_memory_that_runs_out_is_a_refused_turn(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out(*given: object, **named: object) -> str:
        raise PorosOOMError("out of memory", remediation="add --vram-budget min")

    told: list[dict[str, Any]] = []
    chat = LineChat(speaker, None, Sampling(**SHORT), told.append)
    monkeypatch.setattr(speaker, "answer", out)
    chat.take({"say": "a"}, Stop())
    assert told == [
        {
            "event": "refused",
            "code": "E-device-memory",
            "message": "out of memory",
            "where": "",
            "remediation": "add --vram-budget min",
        }
    ]
    assert chat.talks.said("adapter") == []


def test_the_base_never_hears_what_the_adapter_said(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[bool, str]] = []

    def answer(ids: list[int], *given: object, adapted: bool, **named: object) -> str:
        heard.append((adapted, speaker.tokenizer.decode(ids)))
        return "AAA" if adapted else "BBB"

    monkeypatch.setattr(speaker, "answer", answer)
    chat = LineChat(speaker, None, Sampling(**SHORT), lambda line: None)
    for compare in (False, True, True):
        chat.take({"say": "x", "compare": compare}, Stop())
    base = [text for adapted, text in heard if not adapted]
    adapter = [text for adapted, text in heard if adapted]
    assert not any("AAA" in text for text in base)
    assert not any("BBB" in text for text in adapter)
    assert "BBB" in base[-1]
    assert adapter[-1].count("AAA") == 2


def test_what_cannot_be_loaded_is_a_line_and_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(adapter: str, **options: Any) -> Speaker:
        print("a library's chatter")
        raise PorosModelError("no such base", remediation="--base MODEL")

    monkeypatch.setattr(chat_lines, "load_speaker", refuse)
    with pytest.raises(PorosModelError):
        run_chat_lines("a", system=None, compare=False, sampling=SHORT)
    shown = capsys.readouterr()
    (failed,) = map(json.loads, shown.out.splitlines())
    assert failed["event"] == "failed"
    assert failed["exit_code"] == 4
    assert "chatter" in shown.err
