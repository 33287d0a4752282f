"""A checkpoint that is made up as it is read: real shapes without 65 GB of files.

Headers are those a real checkpoint of the config would have. Values come from a generator on the
training device, one seed a tensor: the same device gives the same bytes again, in any order.
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
from poros.loading.skeleton import build_skeleton, checkpoint_tensors
from poros.weights_index import INDEX_FILE, TensorHeader

_PIECE_ELEMENTS = 32 * 2**20  # 64 MB of bfloat16 on the device at a time
_DEVIATION = 0.02


class SeededSource:
    """Random weights: N(0, 0.02) in bfloat16, ones for norms.

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

    def digest(self) -> str:
        """Sha256 over config, seed and headers."""
        headers = {name: [h.dtype, *h.shape] for name, h in self._headers.items()}
        content = json.dumps([self.config, self.seed, headers], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def _make(
        self, name: str, device: torch.device, place: torch.device, dtype: torch.dtype | None
    ) -> Tensor:
        shape = self._headers[name].shape
        if len(shape) == 1 and "norm" in name:
            return torch.ones(shape, dtype=dtype or torch.bfloat16, device=place)
        generator = torch.Generator(device=device).manual_seed(_seed_of(self.seed, name))
        flat = torch.empty(math.prod(shape), dtype=dtype or torch.bfloat16, device=place)
        for piece in flat.split(_PIECE_ELEMENTS):
            made = torch.empty(piece.shape, dtype=torch.bfloat16, device=device)
            piece.copy_(made.normal_(0.0, _DEVIATION, generator=generator))
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
