"""Where a model's bytes come from: an interface, and the one over safetensors files.

The loader asks for one tensor at a time, so that neither host nor device ever holds a whole
checkpoint. The other source, `seeded_source`, makes the values up.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from poros.errors import PorosModelError
from poros.loading.file_hashes import file_hashes
from poros.model_config import read_config
from poros.os_errors import refused
from poros.streaming.file_reader import FilePart
from poros.weights_index import DOWNLOAD_AGAIN, StoredTensor, TensorHeader, read_index

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip


class ByteSource(Protocol):
    """A checkpoint, whether it exists as files or not.

    Attributes:
        name: What the user calls the model; PEFT writes it into the adapter's config.
        folder: Where tokenizer and generation config lie beside the weights, if anywhere.
        config: The model's config.json.
    """

    name: str
    folder: Path | None
    config: dict[str, Any]

    def names(self) -> list[str]:
        """Every tensor of the checkpoint."""
        ...

    def header(self, name: str) -> TensorHeader:
        """The tensor's type, shape and size, without reading it."""
        ...

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on `device`, as `dtype` (None: as stored)."""
        ...

    def read_to_host(
        self, name: str, device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor on the host, with the values that `read` has, in little device memory."""
        ...

    def part(self, name: str) -> FilePart | None:
        """Where the tensor's bytes lie in a file, as stored; None: they lie in none."""
        ...

    def digest(self) -> str:
        """Sha256 that changes when any tensor or the config does."""
        ...


class SafetensorsSource:
    """A model folder with safetensors files.

    Args:
        folder: Holds config.json and the weights.
        name: What the user calls the model; the folder, if left out.

    Raises:
        PorosModelError: Config or headers are missing or damaged.
    """

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        """Read config and headers; no tensor yet."""
        self.folder: Path | None = folder
        self.name = name or os.fspath(folder)
        self.config = read_config(folder)
        self._stored: dict[str, StoredTensor] = read_index(folder)
        self._digest = ""

    def names(self) -> list[str]:
        """Every tensor of the checkpoint."""
        return list(self._stored)

    def header(self, name: str) -> TensorHeader:
        """The tensor's type, shape and size, without reading it."""
        return self._stored[name].header

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on `device`, as `dtype` (None: as stored)."""
        stored = self._stored[name]
        if stored.header.num_bytes == 0:
            flat = torch.empty(0, dtype=torch.uint8)
        else:
            flat = read_part(name, _part(stored))
        tensor = flat.view(TORCH_DTYPES[stored.header.dtype]).view(stored.header.shape)
        return tensor.to(device=device, dtype=dtype)

    def read_to_host(
        self, name: str, device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor on the host; files need no device."""
        del device
        return self.read(name, torch.device("cpu"), dtype)

    def part(self, name: str) -> FilePart | None:
        """Where the tensor's bytes lie in a file, as stored."""
        return _part(self._stored[name])

    def digest(self) -> str:
        """Sha256 over the config and the files' hashes; the files are hashed once."""
        if not self._digest:
            files = sorted({stored.file for stored in self._stored.values()})
            hashes = file_hashes(files)
            content = {
                "config": self.config,
                "files": [[path.name, hashes[path]] for path in files],
            }
            text = json.dumps(content, sort_keys=True)
            self._digest = hashlib.sha256(text.encode()).hexdigest()
        return self._digest


def read_part(name: str, part: FilePart) -> Tensor:
    """Bytes of a tensor, (num_bytes,) uint8 in memory of their own: a mapped page would count too.

    Args:
        name: The tensor's, for messages.
        part: Where they lie; at least one.

    Raises:
        PorosModelError: They can't be read.
    """
    buffer = np.empty(part.num_bytes, dtype=np.uint8)
    view = buffer.data
    done = 0
    try:
        with part.file.open("rb", buffering=0) as file:
            file.seek(part.offset_bytes)
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    raise OSError(None, "the file became shorter while it was read")
                done += count
    except OSError as error:
        raise refused(
            PorosModelError,
            f"{len(view)} bytes can't be read",
            error,
            where=f"tensor {name} in {part.file}",
            remediation=DOWNLOAD_AGAIN,
        ) from error
    return torch.from_numpy(buffer)


def _part(stored: StoredTensor) -> FilePart:
    return FilePart(stored.file, stored.offset_bytes, stored.header.num_bytes)
