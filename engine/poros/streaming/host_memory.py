"""Host buffers of exact size that a device can copy from without waiting.

PyTorch's own pinned allocator rounds each request up to a power of two. Here pages come from an
anonymous mapping and are registered with CUDA where they lie, so 18 GB of blocks take 18 GB.
"""

from __future__ import annotations

import contextlib
import mmap

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

    def register(self) -> None:
        """Pin the pages for the device, if it has such a notion and the system allows it."""
        if self._device.type != "cuda" or self.registered:
            return
        runtime = torch.cuda.cudart()
        result = runtime.cudaHostRegister(self.tensor.data_ptr(), len(self._pages), 0)
        self.registered = int(result) == _SUCCESS

    def close(self) -> None:
        """Unpin. Call it while the device is well; never from a destructor."""
        if self.registered:
            torch.cuda.cudart().cudaHostUnregister(self.tensor.data_ptr())
            self.registered = False
