"""The process's determinism, held as long as any prepared model is there."""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from poros.training.determinism import DeterminismSettings, enforce_determinism


@dataclass
class _Holder:
    model: weakref.ref[Any]
    before: DeterminismSettings


_holders: list[_Holder] = []


def hold_determinism(model: object, device: torch.device, undo: contextlib.ExitStack) -> None:
    """Enforce it for a model.

    Args:
        model: Who needs it.
        device: Where it computes.
        undo: At its end the settings before it come back, unless another model is prepared still:
            then at that one's end.

    Raises:
        PorosConfigError: CUDA was started in another way.
    """
    mine = _Holder(weakref.ref(model), DeterminismSettings.now())
    _holders.append(mine)
    undo.callback(_let_go, mine)
    enforce_determinism(device)


def _let_go(mine: _Holder) -> None:
    later = _holders[_holders.index(mine) + 1 :]
    _holders.remove(mine)
    if _holders:
        gc.collect()  # models that were dropped without unprepare()
    _holders[:] = [holder for holder in _holders if holder.model() is not None]
    if not _holders:
        mine.before.restore()
    for holder in later[:1]:
        holder.before = mine.before
