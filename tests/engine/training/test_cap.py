"""A budget in GB is the allocator's limit as long as its run lasts, and nobody's afterwards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from poros.training.cap import held_to, hold_to

CARD = torch.device("cuda", 0)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> dict[torch.device, float]:
    """What torch was told, on a card of 10 GB whose process had a limit of its own."""
    parts = {CARD: 0.9}
    card = SimpleNamespace(total_memory=10_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", parts.__getitem__)
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda part, device: parts.__setitem__(device, part),
    )
    return parts


def test_a_limit_ends_with_what_it_was_for(limit: dict[torch.device, float]) -> None:
    with held_to(4.0, CARD):
        assert limit[CARD] == 0.4
        with held_to(40.0, CARD):
            assert limit[CARD] == 1.0
        assert limit[CARD] == 0.4
    assert limit[CARD] == 0.9
    with pytest.raises(torch.OutOfMemoryError), held_to(4.0, CARD):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert limit[CARD] == 0.9


def test_budgets_in_words_are_no_limit(limit: dict[torch.device, float]) -> None:
    for budget in ("auto", "min"):
        hold_to(budget, CARD)
        assert limit[CARD] == 0.9
    hold_to(4.0, torch.device("cpu"))
    assert limit[CARD] == 0.9


def test_a_lost_device_is_not_called_again(limit: dict[torch.device, float]) -> None:
    with pytest.raises(torch.AcceleratorError), held_to(4.0, CARD):
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    assert limit[CARD] == 0.4
