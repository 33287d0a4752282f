"""Writes a safetensors file tensor by tensor: the same bytes as `save_file`, without its copies.

`save_file` of earlier safetensors makes bytes of all tensors before it writes the first one, so
a checkpoint of a large adapter would take its own size in memory once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    names = sorted(tensors, key=lambda name: (-_RANKS[tensors[name].dtype], name))
    with path.open("wb") as file:
        file.write(_header({name: tensors[name] for name in names}, metadata))
        for name in names:
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                file.write(flat.view(torch.uint8).numpy().data)


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> bytes:
    """The file's head, padded so that the first tensor is aligned."""
    entries: dict[str, object] = {}
    if metadata is not None:
        entries["__metadata__"] = dict(metadata)
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNED_TO_BYTES)
    return len(text).to_bytes(8, "little") + text
