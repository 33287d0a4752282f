"""A checkpoint that is made up as it is read: real shapes without 65 GB of files.

Headers are those a real checkpoint of the config would have. Values come from a generator on the
training device, one seed a tensor: the same device gives the same bytes again, in any order.

[Note: vectors start where the model's own initialiser puts them]
A norm's weight is near 1 in one family and near 0 in another, which adds the 1 itself; the decay
rates of a recurrent layer are logarithms. Only the model knows. Noise on top makes each vector
unlike every other, so that one in another's place shows.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from poros.loading.byte_source import ByteSource
from poros.loading.first_values import FirstValues
from poros.loading.skeleton import build_skeleton, checkpoint_tensors
from poros.streaming.file_reader import FilePart
from poros.weights_index import INDEX_FILE, TensorHeader

_PIECE_ELEMENTS = 32 * 2**20  # 64 MB of bfloat16 on the device at a time
_DEVIATION = 0.02
_KERNEL_DEVIATION = 0.3
"""Of a convolution along the sequence, whose few products 0.02 would make vanish."""
_RECIPE = 2
"""Other values under the same config and seed are another number."""


class SeededSource:
    """Random weights in bfloat16: matrices N(0, 0.02), vectors as far from their first values.

    Args:
        config: A config.json as a dict.
        seed: Another seed, other values.
    """

    def __init__(self, config: dict[str, Any], seed: int, *, name: str = "seeded") -> None:
        """Derive the headers from the model that the config describes."""
        self.name = name
        self.folder: Path | None = None
        self.config = dict(config)
        self.seed = seed
        skeleton = build_skeleton(self.config, quantization="bf16", dtype=torch.bfloat16)
        self._first_values = FirstValues(skeleton.model)
        self._headers = {
            tensor_name: TensorHeader("BF16", tuple(t.shape), t.numel() * 2)
            for tensor_name, t in checkpoint_tensors(skeleton.model).items()
        }

    def names(self) -> list[str]:
        """Every tensor of the checkpoint."""
        return list(self._headers)

    def header(self, name: str) -> TensorHeader:
        """The tensor's type, shape and size."""
        return self._headers[name]

    def read(self, name: str, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on `device`, as `dtype` (None: bfloat16)."""
        return self._make(name, device, device, dtype)

    def read_to_host(
        self, name: str, device: torch.device, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor on the host: made on `device` piece by piece, so with `read`'s values."""
        return self._make(name, device, torch.device("cpu"), dtype)

    def part(self, name: str) -> FilePart | None:
        """No file holds the bytes."""
        del name
        return None

    def digest(self) -> str:
        """Sha256 over config, seed and headers."""
        headers = {name: [h.dtype, *h.shape] for name, h in self._headers.items()}
        content = json.dumps([_RECIPE, self.config, self.seed, headers], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _make(
        self, name: str, device: torch.device, place: torch.device, dtype: torch.dtype | None
    ) -> Tensor:
        shape, seed = self._headers[name].shape, _seed_of(self.seed, name)
        deviation = _KERNEL_DEVIATION if len(shape) == 3 else _DEVIATION
        generator = torch.Generator(device=device).manual_seed(seed)
        flat = torch.empty(math.prod(shape), dtype=dtype or torch.bfloat16, device=place)
        for piece in flat.split(_PIECE_ELEMENTS):
            made = torch.empty(piece.shape, dtype=torch.bfloat16, device=device)
            piece.copy_(made.normal_(0.0, deviation, generator=generator))
        if len(shape) <= 1:
            first = self._first_values.of(name, seed).view(-1).to(place)
            flat.copy_((flat.float() + first).bfloat16())
        return flat.view(shape)


def write_checkpoint(
    source: ByteSource,
    folder: Path,
    *,
    device: torch.device,
    max_shard_bytes: int = 2 * 10**9,
) -> None:
    """Write a source as an ordinary folder of safetensors shards, one shard in memory at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    shards = list(_shards(source, max_shard_bytes))
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: source.read_to_host(name, device) for name in names}
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file_name)
    total_bytes = sum(source.header(name).num_bytes for name in source.names())
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(source.config, indent=1) + "\n")


def _shards(source: ByteSource, max_shard_bytes: int) -> Iterator[list[str]]:
    shard: list[str] = []
    size_bytes = 0
    for name in source.names():
        num_bytes = source.header(name).num_bytes
        if shard and size_bytes + num_bytes > max_shard_bytes:
            yield shard
            shard, size_bytes = [], 0
        shard.append(name)
        size_bytes += num_bytes
    if shard:
        yield shard


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # manual_seed takes a signed 64-bit number
