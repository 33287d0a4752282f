"""Device memory that ran out: telling it from other errors, and trying again without what held it.

[Note: the failed work lets go]
An exception keeps the frames that it passed, and they keep their tensors: activations, the graph
half built, the layer's temporaries. So these are cleared, the `except` block is left, and only then
is anything tried again.
"""

from __future__ import annotations

import dataclasses
import gc
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")

_OTHER_WORDS = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How memory that torch's allocator has no part in is refused: cuBLAS, and kernels being loaded."""

_SIZE = r"([\d.]+) (bytes|KiB|MiB|GiB)"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """One allocation that failed.

    Attributes:
        phase: What was computed: ``forward``, ``backward``, ``norm``, ``step``, ``evaluate``,
            ``sample``, ``answer``.
        reason: The library's first sentence.
        asked_bytes: Of the allocation; 0: the library doesn't say.
        in_use_bytes: Of the allocator at that moment; 0 on the CPU.
        cap_bytes: What the allocator could have had in all; 0 on the CPU.
    """

    phase: str
    reason: str
    asked_bytes: int = 0
    in_use_bytes: int = 0
    cap_bytes: int = 0

    def sizes(self) -> dict[str, Any]:
        """Phase and bytes, as `PorosOOMError` takes them."""
        fields = dataclasses.asdict(self)
        del fields["reason"]
        return fields


MakeRoom = Callable[[Shortage], None]
"""Frees memory for good, by a smaller plan; raises PorosOOMError if there is none."""


def is_shortage(error: BaseException) -> bool:
    """Whether the error says that the device has no memory left."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _OTHER_WORDS)


def is_host_shortage(error: BaseException) -> bool:
    """Whether the error says that the host has no memory left."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def shortage_of(error: BaseException, *, phase: str, device: torch.device) -> Shortage:
    """What is known of the failed allocation; call it before anything is freed."""
    told = told_shortage(error, phase=phase)
    if device.type != "cuda":
        return told
    return dataclasses.replace(
        told, in_use_bytes=torch.cuda.memory_allocated(device), cap_bytes=_cap_bytes(device)
    )


def told_shortage(error: BaseException, *, phase: str) -> Shortage:
    """What the error's own text says of it; nothing is asked of the device."""
    text = str(error)
    allowed_bytes = _bytes_in(text, f"{_SIZE} allowed;")
    total_bytes = _bytes_in(text, f"total capacity of {_SIZE}")
    return Shortage(
        phase=phase,
        reason=text.partition(". ")[0].partition("\n")[0],
        asked_bytes=_bytes_in(text, f"Tried to allocate {_SIZE}"),
        in_use_bytes=_bytes_in(text, f"Of the allocated memory {_SIZE}"),
        cap_bytes=allowed_bytes or total_bytes,
    )


def until_it_fits(
    attempt: Callable[[], T],
    *,
    phase: Callable[[], str],
    device: torch.device,
    make_room: MakeRoom,
    undo: Callable[[], None],
) -> T:
    """Attempt something until the device's memory is enough for it.

    Args:
        attempt: Is called again after each shortage.
        phase: What the attempt is at.
        device: Whose memory.
        make_room: Called after each shortage.
        undo: Called before it: has everything be as it was before the attempt.

    Raises:
        PorosOOMError: From `make_room`.
    """
    while True:
        try:
            return attempt()
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            shortage = shortage_of(error, phase=phase(), device=device)
            let_go(error)
        undo()
        free(device)
        make_room(shortage)


def free(device: torch.device) -> None:
    """Give back what nobody holds any more, to the device and to other programs."""
    gc.collect()  # an error and a frame that names it hold each other
    if device.type == "cuda":
        torch.cuda.empty_cache()


def let_go(error: BaseException) -> None:
    """Clear the frames that an error and those before it hold."""
    seen, chain = set[int](), [error]
    while chain:
        one = chain.pop()
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
        before = (one.__context__, one.__cause__)
        chain += [other for other in before if other is not None and id(other) not in seen]


def _bytes_in(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def _cap_bytes(device: torch.device) -> int:
    """A limit set for this process, or what other programs leave of the device."""
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    limit_bytes = int(torch.cuda.get_per_process_memory_fraction(device) * total_bytes)
    return min(limit_bytes, free_bytes + torch.cuda.memory_reserved(device))
