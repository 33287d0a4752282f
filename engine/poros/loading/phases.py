"""What surrounds a load: its events, its peak of device memory, and running out of memory."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

from poros.errors import PorosHostMemoryError, PorosOOMError
from poros.events import Event, PhaseFinished, PhaseStarted
from poros.streaming.shortage import is_host_shortage, told_shortage

Emit = Callable[[Event], None]


@contextlib.contextmanager
def phase_events(name: str, emit: Emit) -> Iterator[None]:
    """Report a phase's begin, and its end if it ends well."""
    started_s = time.monotonic()
    emit(PhaseStarted(phase=name))
    yield
    emit(PhaseFinished(phase=name, duration_s=time.monotonic() - started_s))


@contextlib.contextmanager
def device_peak(device: torch.device) -> Iterator[list[int]]:
    """Yield a list whose one item becomes the most memory taken beyond what was taken before."""
    peak = [0]
    if device.type != "cuda":
        yield peak
        return
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    peak[0] = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn running out of memory into the error that says so, in a load."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise PorosOOMError(
            "the device has too little memory for the largest linear",
            where="loading the model",
            remediation="end other programs that use the card, or take a smaller model",
            **told_shortage(error, phase="load").sizes(),
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not is_host_shortage(error):
            raise
        raise PorosHostMemoryError(
            "the computer has too little memory for the model's blocks",
            where="loading the model",
            remediation="free some memory, or take a smaller model",
        ) from error
