"""Host buffers of exact size that a device can copy from without waiting.

PyTorch's own pinned allocator rounds each request up to a power of two. Here pages come from an
anonymous mapping and are registered with CUDA where they lie, so 18 GB of blocks take 18 GB.

[Note: registered pages are unregistered before they are unmapped]
CUDA knows registered memory by its address and keeps the pages it found there. The system gives an
unmapped address to the next mapping; if it were registered still, the device would be handed the
old pages' bytes in place of the new buffer's.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref

import torch
from torch import Tensor

_SUCCESS = 0  # cudaSuccess, and "already registered" is not: each buffer is registered once


class HostBuffer:
    """A page-aligned uint8 tensor on the host; registered with CUDA if `device` is one.

    Args:
        num_bytes: Exact size.
        device: The device that will copy from it.

    Attributes:
        tensor: (num_bytes,) uint8.
        registered: Whether copies from it can run beside the host. A refusal (a locked-memory
            limit, WSL) changes the speed and never the bytes.
    """

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        """Map the pages; `register` pins them once they are filled."""
        self._device = device
        self._pages = mmap.mmap(-1, max(num_bytes, 1))
        with contextlib.suppress(OSError, ValueError):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self.tensor: Tensor = torch.frombuffer(self._pages, dtype=torch.uint8)[:num_bytes]
        self.registered = False
        self._unregister: weakref.finalize[..., HostBuffer] | None = None

    def register(self) -> None:
        """Pin the pages for the device, if it has such a notion and the system allows it."""
        if self._device.type != "cuda" or self.registered:
            return
        runtime = torch.cuda.cudart()
        result = runtime.cudaHostRegister(self.tensor.data_ptr(), len(self._pages), 0)
        self.registered = int(result) == _SUCCESS
        if not self.registered:
            # The refusal is CUDA's last error, which the next kernel's launch would be blamed for.
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device=self._device)
        else:
            self._unregister = weakref.finalize(self, _unregister, self.tensor, self._device)
            self._unregister.atexit = False  # CUDA may be gone by then, and so will the pages

    def close(self) -> None:
        """Unpin; a buffer that is dropped does so by itself."""
        if self._unregister is not None:
            self._unregister()
        self.registered = False


def _unregister(tensor: Tensor, device: torch.device) -> None:
    """Unpin the tensor's pages, which it keeps mapped until then."""
    with contextlib.suppress(RuntimeError):  # a device that failed: nothing reads the pages
        torch.cuda.synchronize(device)  # noqa: TID251  # a copy from the pages may be under way
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
