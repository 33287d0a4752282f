"""Answers on a card: blocks kept there or streamed, head on the host or not, the same words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from poros.answering.generate import prompt_ids, question
from poros.answering.load import load_speaker
from poros.answering.speaker import Sampling
from poros.training import streamed_model
from tests.engine.export.adapters import write_adapter, write_base

pytestmark = pytest.mark.gpu


def silent(event: object) -> None:
    del event


def test_every_budget_gives_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "cache"))
    adapter = write_adapter(tmp_path / "adapter", write_base(tmp_path / "base"))
    sampling, answers, resident = Sampling(max_new_tokens=12), [], []
    made = streamed_model.BlockManager

    def counted(*blocks: object, **named: object) -> object:
        resident.append(len(named["resident"]))
        return made(*blocks, **named)

    monkeypatch.setattr(streamed_model, "BlockManager", counted)
    for budget in ("auto", "min", "0.5"):
        speaker = load_speaker(str(adapter), emit=silent, device="cuda:0", vram_budget=budget)
        ids = prompt_ids(speaker, question("Who are you?", None))
        answers.append(speaker.answer(ids, sampling))
        alone = speaker.answer(ids, sampling, adapted=False)
        assert speaker.device == torch.device("cuda", 0)
        assert torch.cuda.get_per_process_memory_fraction(0) == 1.0  # a budget is no later one's
        assert alone != answers[-1]
        del speaker
    assert len(set(answers)) == 1
    # All three fit the card, and half a GB of it.
    assert resident == [3, 0, 3]
