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
import math
import mmap
import weakref
from collections.abc import Sequence

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
        self.tensor: Tensor = _pages(num_bytes)
        self.registered = False
        self._unregister: weakref.finalize[..., HostBuffer] | None = None

    @classmethod
    def around(cls, tensor: Tensor, device: torch.device) -> HostBuffer | None:
        """The buffer whose memory a tensor already has, all of it; None: it has other memory.

        Args:
            tensor: A `HostBuffer`'s own, or a view of it by another type and shape.
            device: As for a new one.
        """
        if tensor.numel() == 0 or tensor.data_ptr() % mmap.PAGESIZE or not tensor.is_contiguous():
            return None
        buffer = cls(0, device)
        buffer.tensor = tensor.detach().view(-1).view(torch.uint8)
        return buffer

    def register(self) -> None:
        """Pin the pages for the device, if it has such a notion and the system allows it."""
        if self._device.type != "cuda" or self.registered:
            return
        runtime = torch.cuda.cudart()
        # By name: in a thread of its own, the current device is the first, which may be another's.
        with torch.cuda.device(self._device):
            result = runtime.cudaHostRegister(
                self.tensor.data_ptr(), max(self.tensor.numel(), 1), 0
            )
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


def untouched(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor in pages of its own, zeros that take no memory until somebody writes into them."""
    num_bytes = math.prod(shape) * dtype.itemsize
    return _pages(num_bytes).view(dtype).view(tuple(shape))


def _pages(num_bytes: int) -> Tensor:
    pages = mmap.mmap(-1, max(num_bytes, 1))
    with contextlib.suppress(OSError, ValueError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)[:num_bytes]  # keeps the pages mapped


def _unregister(tensor: Tensor, device: torch.device) -> None:
    """Unpin the tensor's pages, which it keeps mapped until then."""
    with contextlib.suppress(RuntimeError):  # a device that failed: nothing reads the pages
        torch.cuda.synchronize(device)  # noqa: TID251  # a copy from the pages may be under way
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())
