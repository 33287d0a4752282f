"""A few rows of a stored matrix at a time, so that no matrix is ever whole in memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from poros.loading.byte_source import TORCH_DTYPES, ByteSource, read_part
from poros.streaming.file_reader import FilePart
from poros.weights_index import TensorHeader

CHUNK_ELEMENTS = 2**24
"""Of a matrix in memory at a time: 64 MiB in float32."""


def row_ranges(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) row of each piece of a tensor of this shape."""
    num_rows = shape[0] if shape else 1
    width = max(1, torch.Size(shape[1:]).numel())
    step = max(1, CHUNK_ELEMENTS // width)
    for first in range(0, num_rows, step):
        yield first, min(first + step, num_rows)


def read_rows(source: ByteSource, name: str, first: int, last: int) -> Tensor:
    """Rows ``first`` to ``last`` of a stored tensor, as stored, on the host.

    Args:
        source: Over files.
        name: The tensor's name there; without dimensions it is one row.
        first: Included.
        last: Excluded.

    Raises:
        PorosModelError: They can't be read.
    """
    header: TensorHeader = source.header(name)
    shape = header.shape or (1,)
    dtype = TORCH_DTYPES[header.dtype]
    row_bytes = torch.Size(shape[1:]).numel() * dtype.itemsize
    whole = source.part(name)
    assert whole is not None, "an export reads files"
    if first == last or not row_bytes:
        return torch.empty((last - first, *shape[1:]), dtype=dtype)
    part = FilePart(whole.file, whole.offset_bytes + first * row_bytes, (last - first) * row_bytes)
    return read_part(name, part).view(dtype).view(last - first, *shape[1:])
