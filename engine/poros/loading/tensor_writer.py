"""Writes a safetensors file tensor by tensor: the same bytes as `save_file`, without its copies.

`save_file` of earlier safetensors makes bytes of all tensors before it writes the first one, so
a checkpoint of a large adapter would take its own size in memory once more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
"""The format's names, in the order in which it sorts them: those that are aligned widest go first,
from the last one here to the first."""

_RANKS = {dtype: rank for rank, dtype in enumerate(_DTYPES)}
_ALIGNED_TO_BYTES = 8


@dataclass(frozen=True)
class Shape:
    """What a file's head says of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file that is equal to `save_file`'s, with one tensor's copy in memory at most.

    Args:
        tensors: On any device, in any layout; a tensor on the host that is contiguous is not
            copied at all.
        path: What is there is overwritten. Not atomic: that is the caller's matter.
        metadata: Texts for the header.

    Raises:
        OSError: Disk full or failing.
        KeyError: A dtype that no file of ours has.
    """
    shapes = {name: Shape(t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    write_pieces(shapes, path, lambda name: [tensors[name]], metadata=metadata)


def write_pieces(
    shapes: Mapping[str, Shape],
    path: Path,
    pieces: Callable[[str], Iterable[Tensor]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file whose tensors come in pieces, one after the other.

    Args:
        shapes: What the tensors are.
        path: What is there is overwritten. Not atomic: that is the caller's matter.
        pieces: A tensor's parts, by its name: together they have its elements, in order.
        metadata: Texts for the header.

    Raises:
        OSError: Disk full or failing.
        KeyError: A dtype that no file of ours has.
    """
    names = sorted(shapes, key=lambda name: (-_RANKS[shapes[name].dtype], name))
    with path.open("wb") as file:
        file.write(_header({name: shapes[name] for name in names}, metadata))
        for name in names:
            begin = file.tell()
            for piece in pieces(name):
                flat = piece.detach().cpu().contiguous().reshape(-1)
                if flat.numel():
                    file.write(flat.view(torch.uint8).numpy().data)
            assert file.tell() - begin == shapes[name].num_bytes, name


def _header(shapes: Mapping[str, Shape], metadata: Mapping[str, str] | None) -> bytes:
    """The file's head, padded so that the first tensor is aligned."""
    entries: dict[str, object] = {}
    if metadata is not None:
        entries["__metadata__"] = dict(metadata)
    begin = 0
    for name, tensor in shapes.items():
        end = begin + tensor.num_bytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED_TO_BYTES)
    return len(text).to_bytes(8, "little") + text
