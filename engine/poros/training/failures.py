"""Exceptions of libraries, as the errors that a person can act on."""

from __future__ import annotations

from pathlib import Path

import torch

from poros import atomic
from poros.config import PorosConfig
from poros.errors import (
    PorosDeviceLostError,
    PorosError,
    PorosHostMemoryError,
    PorosNonFiniteError,
    PorosOOMError,
)
from poros.streaming.shortage import is_host_shortage, is_shortage, told_shortage

_OF_A_STEP = (PorosDeviceLostError, PorosHostMemoryError, PorosNonFiniteError, PorosOOMError)
"""What ends a run in the middle of its work; others say themselves what they leave."""


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
    if isinstance(found, _OF_A_STEP) and (saved := _told_saved(phase, step, has_saved=has_saved)):
        found.remediation = "; ".join(filter(None, (found.remediation, saved)))
    return found


def _told_saved(phase: str, step: int, *, has_saved: bool) -> str:
    """What is left of the run, in words; empty: there was nothing to save."""
    if has_saved:
        return "the last checkpoint is intact"
    return "nothing was saved yet" if step or phase == "train" else ""


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
            f"the card failed: {str(error).partition(chr(10))[0]}",
            where=where,
            remediation="start again; see dmesg for Xid lines",
        )
    if is_host_shortage(error):
        return PorosHostMemoryError(
            "the computer has too little memory",
            where=where,
            remediation="close other programs, or lower per_device_batch_size",
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
        else "end other programs that use the card; otherwise lower max_seq_length or"
        " per_device_batch_size, which starts another run"
    )
    shortage = told_shortage(error, phase=phase)
    return PorosOOMError(
        shortage.reason,
        where=where,
        remediation=way_out,
        setting=setting,
        **shortage.sizes(),
    )
