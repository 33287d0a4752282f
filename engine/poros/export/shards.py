"""A model's tensors in files of a bounded size, with the index that standard loaders read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from poros.errors import PorosConfigError
from poros.export.merge import Merged
from poros.loading.tensor_writer import write_pieces
from poros.typed_sizes import typed_bytes
from poros.weights_index import INDEX_FILE, SINGLE_FILE

T = TypeVar("T")


def parse_size(text: str) -> int:
    """Bytes of ``4GB``, ``250MB``, ``1GiB`` or a plain number.

    Raises:
        PorosConfigError: It is no size.
    """
    num_bytes = typed_bytes(text) or 0
    if not 1 <= num_bytes < math.inf:
        raise PorosConfigError(
            f"{text!r} is no size", where="--max-shard-size", remediation="write it as 4GB or 500MB"
        )
    return int(num_bytes)


def plan_shards(tensors: Sequence[Merged], max_bytes: int) -> list[list[Merged]]:
    """The tensors in their order, as many to a file as fit; a larger one has a file of its own."""
    shards: list[list[Merged]] = []
    size = 0
    for tensor in tensors:
        if not shards or size + tensor.shape.num_bytes > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.shape.num_bytes
    return shards


def write_shards(
    shards: Sequence[Sequence[Merged]],
    folder: Path,
    pieces: Callable[[Merged], Iterable[Tensor]],
    done: Callable[[int], None],
) -> None:
    """Write the files and, if there are several, their index.

    Args:
        shards: As `plan_shards` has them.
        folder: Where they go.
        pieces: A tensor's bytes, some rows at a time.
        done: Is told of each tensor how many bytes it had.
    """
    names = _file_names(len(shards))
    for name, shard in zip(names, shards, strict=True):
        by_name = {tensor.name: tensor for tensor in shard}

        def of(key: str, by_name: dict[str, Merged] = by_name) -> Iterable[Tensor]:
            yield from pieces(by_name[key])
            done(by_name[key].shape.num_bytes)

        shapes = {key: tensor.shape for key, tensor in by_name.items()}
        write_pieces(shapes, folder / name, of, metadata={"format": "pt"})
    if len(shards) > 1:
        pairs = [(t.name, name) for name, shard in zip(names, shards, strict=True) for t in shard]
        total = sum(tensor.shape.num_bytes for shard in shards for tensor in shard)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(pairs))}
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _file_names(count: int) -> list[str]:
    if count == 1:
        return [SINGLE_FILE]
    return [f"model-{k:05d}-of-{count:05d}.safetensors" for k in range(1, count + 1)]
