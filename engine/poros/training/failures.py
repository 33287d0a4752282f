"""Exceptions of libraries, as the errors that a person can act on."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from poros import atomic
from poros.config import PorosConfig
from poros.errors import (
    PorosDeviceLostError,
    PorosError,
    PorosHostMemoryError,
    PorosOOMError,
)
from poros.streaming.shortage import is_host_shortage, is_shortage, told_shortage

_PROMISE = re.compile(
    r"; (the last checkpoint is|checkpoints are) intact|, it goes on from the last checkpoint"
)


def as_poros_error(
    error: BaseException,
    config: PorosConfig,
    *,
    step: int,
    phase: str,
    folder: Path,
    has_saved: bool,
) -> PorosError | None:
    """The error to show; None: it is a bug of ours.

    Args:
        error: What ended a run.
        config: Its settings.
        step: The last one that was made.
        phase: What it was in.
        folder: Where it writes.
        has_saved: There is a checkpoint to go on from; without one none is promised.
    """
    found = _told(error, config, step=step, phase=phase, folder=folder)
    if found is not None and not has_saved:
        found.remediation = _PROMISE.sub("; nothing was saved yet", found.remediation)
    return found


def _told(
    error: BaseException, config: PorosConfig, *, step: int, phase: str, folder: Path
) -> PorosError | None:
    if isinstance(error, PorosError):
        return error
    where = f"step {step + 1}" if step else "before the second step"
    if is_shortage(error):
        return _out_of_memory(error, config, where=where, phase=phase)
    if isinstance(error, torch.AcceleratorError):
        return PorosDeviceLostError(
            f"the device failed: {str(error).partition(chr(10))[0]}",
            where=where,
            remediation="start again, it goes on from the last checkpoint; see dmesg for Xid lines",
        )
    if is_host_shortage(error):
        return PorosHostMemoryError(
            "the host has too little memory",
            where=where,
            remediation="close other programs, or lower per_device_batch_size; the last"
            " checkpoint is intact",
        )
    return atomic.storage_error(error, folder)


def _out_of_memory(
    error: BaseException, config: PorosConfig, *, where: str, phase: str
) -> PorosOOMError:
    """With the settings to try, those that change no bit first."""
    same_bits = []
    if not isinstance(config.vram_budget, str):
        same_bits.append("vram_budget: min")
    if config.num_slots > 2:
        same_bits.append("num_slots: 2")
    if config.layers_per_block > 1:
        same_bits.append("block_size: 1")
    setting = ", ".join(same_bits)
    way_out = (
        f"set {setting} (same bits) and run again"
        if same_bits
        else "free the device of other programs; otherwise lower max_seq_length or"
        " per_device_batch_size, which starts another run"
    )
    shortage = told_shortage(error, phase=phase)
    return PorosOOMError(
        shortage.reason,
        where=where,
        remediation=f"{way_out}; checkpoints are intact",
        setting=setting,
        **shortage.sizes(),
    )
