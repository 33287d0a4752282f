"""Safetensors headers: which tensors a model folder has, their types, shapes and byte ranges.

Reads headers only, needs no torch, and takes nothing on trust: a file may be cut short, empty, a
Git LFS pointer, or an error page that was saved as weights.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poros.errors import PorosModelError
from poros.os_errors import refused

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
DOWNLOAD_AGAIN = "download the file again"

DTYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

_MAX_HEADER_BYTES = 100_000_000  # safetensors' own limit
_LENGTH_BYTES = 8
_FIRST_BYTES = _LENGTH_BYTES + 200  # enough to tell what was saved in place of weights
_LFS_MARK = b"version https://git-lfs"
_HTML_MARKS = (b"<!doctype", b"<html", b"<?xml", b"<head")
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class TensorHeader:
    """What a checkpoint says about a tensor; `dtype` is safetensors' name, such as ``BF16``."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's header and where its bytes lie."""

    header: TensorHeader
    file: Path
    offset_bytes: int


def read_index(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a model folder, from one file or from shards.

    Raises:
        PorosModelError: Weights are missing, damaged, pickled, or disagree with their index.
    """
    if (folder / INDEX_FILE).exists():
        return _read_shards(folder, _read_weight_map(folder / INDEX_FILE))
    if (folder / SINGLE_FILE).exists():
        return read_file_header(folder / SINGLE_FILE)
    raise _no_weights(folder)


def read_file_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file.

    Raises:
        PorosModelError: The file is not a whole safetensors file.
    """
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_FIRST_BYTES)
            header_bytes = header_length(path, head, size_bytes)
            file.seek(_LENGTH_BYTES)
            raw = file.read(header_bytes)
    except OSError as error:
        raise unreadable(path, error) from error
    return parse_header(path, raw, size_bytes)


def header_length(path: Path, head: bytes, size_bytes: int) -> int:
    """How long a file's header is, behind the 8 bytes that say so.

    Args:
        path: For errors.
        head: The file's first 208 bytes or more.
        size_bytes: Of the whole file.

    Raises:
        PorosModelError: It is no safetensors file, or cut short.
    """
    _refuse_impostors(path, head[:_FIRST_BYTES], size_bytes)
    header_bytes = int.from_bytes(head[:_LENGTH_BYTES], "little")
    _check_header_length(path, header_bytes, size_bytes)
    return header_bytes


def parse_header(path: Path, raw: bytes, size_bytes: int) -> dict[str, StoredTensor]:
    """The tensors that a header names, which must fill the whole file.

    Args:
        path: For errors, and of the tensors.
        raw: The header without its length.
        size_bytes: Of the whole file.

    Raises:
        PorosModelError: It is damaged, or the file has another size.
    """
    header_bytes = len(raw)
    entries = _parse_json(path, raw)
    start = _LENGTH_BYTES + header_bytes
    tensors = {n: _stored(path, n, e, start) for n, e in entries.items() if n != "__metadata__"}
    _check_coverage(path, tensors, start, size_bytes)
    return tensors


def unreadable(path: Path, error: OSError) -> PorosModelError:
    """What to say of a file of the model that the system doesn't hand out."""
    denied = isinstance(error, PermissionError)
    mend = f"make it readable: chmod u+r {path}" if denied else DOWNLOAD_AGAIN
    return refused(PorosModelError, "the file can't be read", error, where=path, remediation=mend)


def short_list(names: Iterable[str]) -> str:
    """All the names, complete yet short: layer numbers that differ alone become a range."""
    groups: dict[str, list[int]] = {}
    plain = []
    for name in names:
        found = re.search(r"\.(\d+)\.", name)
        if found:
            groups.setdefault(f"{name[: found.start(1)]}\0{name[found.end(1) :]}", []).append(
                int(found[1])
            )
        else:
            plain.append(name)
    merged = [key.replace("\0", _ranges(sorted(numbers))) for key, numbers in groups.items()]
    return ", ".join(sorted(plain) + merged)


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return text if len(numbers) == 1 else f"[{text}]"


def _refuse_impostors(path: Path, head: bytes, size_bytes: int) -> None:
    start = head.lstrip().lower()
    if size_bytes == 0:
        raise PorosModelError("the file is empty", where=str(path), remediation=DOWNLOAD_AGAIN)
    if head.startswith(_LFS_MARK):
        raise PorosModelError(
            f"a Git LFS pointer of {size_bytes} bytes, not the weights",
            where=str(path),
            remediation="run `git lfs pull` in the model's folder, or download the file again",
        )
    if start.startswith(_HTML_MARKS):
        raise PorosModelError(
            "an HTML page was saved in place of the weights",
            where=str(path),
            remediation="download the file again; a login or a proxy answered the last time",
        )
    # A header of 640 bytes begins like a pickle, one of 64 MB like a zip file.
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    sound = length <= _MAX_HEADER_BYTES and head[_LENGTH_BYTES:].startswith(b"{")
    if head.startswith((b"PK\x03\x04", b"\x80\x02")) and not sound:
        raise PorosModelError(
            "a pickle with a safetensors name; Poros never unpickles",
            where=str(path),
            remediation="convert the model to safetensors where you trust it",
        )


def _check_header_length(path: Path, header_bytes: int, size_bytes: int) -> None:
    if size_bytes < _LENGTH_BYTES or (
        header_bytes <= _MAX_HEADER_BYTES and header_bytes > size_bytes - _LENGTH_BYTES
    ):
        needed = "at least 8" if size_bytes < _LENGTH_BYTES else f"{header_bytes + _LENGTH_BYTES}"
        raise PorosModelError(
            f"cut short: {size_bytes} bytes, the header alone needs {needed}",
            where=str(path),
            remediation=DOWNLOAD_AGAIN,
        )
    if header_bytes > _MAX_HEADER_BYTES:
        raise PorosModelError(
            f"not a safetensors file: its first 8 bytes announce a header of {header_bytes} bytes",
            where=str(path),
            remediation=DOWNLOAD_AGAIN,
        )


def _parse_json(path: Path, raw: bytes) -> dict[str, Any]:
    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        entries = json.loads(raw.decode("utf-8"), object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as error:
        raise PorosModelError(
            f"the header is not valid JSON ({error})", where=str(path), remediation=DOWNLOAD_AGAIN
        ) from error
    if not isinstance(entries, dict):
        raise PorosModelError(
            "the header is not a JSON object", where=str(path), remediation=DOWNLOAD_AGAIN
        )
    return entries


def _stored(path: Path, name: str, entry: Any, start: int) -> StoredTensor:
    def bad(what: str) -> PorosModelError:
        where = f"tensor {name} in {path}"
        return PorosModelError(what, where=where, remediation=DOWNLOAD_AGAIN)

    if not isinstance(entry, dict):
        raise bad("the header's entry is not an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise bad(f"unknown dtype {dtype!r}, expected one of {', '.join(DTYPE_BYTES)}")
    if not _is_naturals(shape):
        raise bad(f"the shape {shape!r} is not a list of sizes")
    if not _is_naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise bad(f"the offsets {offsets!r} are not a range of bytes")
    num_bytes = offsets[1] - offsets[0]
    expected = math.prod(shape) * DTYPE_BYTES[dtype]
    if num_bytes != expected:
        raise bad(
            f"found {num_bytes} bytes, expected {expected} from dtype {dtype} and shape {shape}"
        )
    return StoredTensor(TensorHeader(dtype, tuple(shape), num_bytes), path, start + offsets[0])


def _is_naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _check_coverage(
    path: Path, tensors: Mapping[str, StoredTensor], start: int, size_bytes: int
) -> None:
    """Every byte behind the header belongs to exactly one tensor."""
    end = start
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset_bytes):
        if tensor.header.num_bytes and tensor.offset_bytes != end:
            raise PorosModelError(
                f"the byte range begins at {tensor.offset_bytes}, expected {end}",
                where=f"tensor {name} in {path}",
                remediation=DOWNLOAD_AGAIN,
            )
        end = max(end, tensor.offset_bytes + tensor.header.num_bytes)
    if size_bytes < end:
        raise PorosModelError(
            f"cut short: {size_bytes} bytes, the header needs {end}",
            where=str(path),
            remediation=DOWNLOAD_AGAIN,
        )
    if size_bytes > end:
        raise PorosModelError(
            f"{size_bytes - end} bytes behind the last tensor",
            where=str(path),
            remediation=DOWNLOAD_AGAIN,
        )


def _read_weight_map(path: Path) -> dict[str, str]:
    try:
        index = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _no_index(path, error) from error
    return weight_map_of(index, path)


def _no_index(path: Path, error: Exception) -> PorosModelError:
    return PorosModelError(
        f"not an index of shards ({type(error).__name__}: {error})",
        where=str(path),
        remediation=DOWNLOAD_AGAIN,
    )


def weight_map_of(index: Any, path: Path) -> dict[str, str]:
    """Tensor to shard, as the index file has it; `path` is for errors.

    Raises:
        PorosModelError: It maps nothing, or to files elsewhere.
    """
    try:
        weight_map = index["weight_map"]
        sound = isinstance(weight_map, dict) and all(
            isinstance(v, str) for v in weight_map.values()
        )
    except (LookupError, TypeError) as error:
        raise _no_index(path, error) from error
    if not sound or not weight_map:
        raise PorosModelError(
            "weight_map does not map tensors to files", where=str(path), remediation=DOWNLOAD_AGAIN
        )
    outside = sorted({v for v in weight_map.values() if Path(v).name != v or v in (".", "..")})
    if outside:
        raise PorosModelError(
            f"names files outside the model's folder: {', '.join(outside)}",
            where=str(path),
            remediation="don't use this model; its index is not what tools write",
        )
    return dict(weight_map)


def _read_shards(folder: Path, weight_map: Mapping[str, str]) -> dict[str, StoredTensor]:
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        raise PorosModelError(
            f"{len(missing)} of {len(shards)} shards are missing: {', '.join(missing)}",
            where=str(folder),
            remediation="download them again",
        )
    return join_shards(
        folder, weight_map, {shard: read_file_header(folder / shard) for shard in shards}
    )


def join_shards(
    folder: Path,
    weight_map: Mapping[str, str],
    by_shard: Mapping[str, Mapping[str, StoredTensor]],
) -> dict[str, StoredTensor]:
    """All tensors of all shards.

    Args:
        folder: For errors.
        weight_map: Tensor to shard, as the index says.
        by_shard: What each shard's header says.

    Raises:
        PorosModelError: They disagree.
    """
    found: dict[str, StoredTensor] = {}
    duplicates = []
    for tensors in by_shard.values():
        duplicates += [name for name in tensors if name in found]
        found |= dict(tensors)
    wrong = {
        "in two shards": duplicates,
        "in the index but in no shard": [name for name in weight_map if name not in found],
        "in a shard but not in the index": [name for name in found if name not in weight_map],
        "in another shard than the index says": [
            name
            for name, shard in weight_map.items()
            if name in found and found[name].file.name != shard
        ],
    }
    reasons = [f"{short_list(names)} {what}" for what, names in wrong.items() if names]
    if reasons:
        raise PorosModelError(
            f"shards and index disagree: {'; '.join(reasons)}",
            where=str(folder / INDEX_FILE),
            remediation="download index and shards again, all of one revision",
        )
    return found


def _no_weights(folder: Path) -> PorosModelError:
    files = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    pickles = [name for name in files if name.endswith(_PICKLE_SUFFIXES)]
    if pickles:
        return PorosModelError(
            f"no safetensors, only pickles ({', '.join(pickles)}); Poros never unpickles",
            where=str(folder),
            remediation="take a revision that has safetensors, or convert it where you trust it",
        )
    return PorosModelError(
        f"no {SINGLE_FILE} and no {INDEX_FILE}",
        where=str(folder),
        remediation="give the folder that holds config.json and the safetensors files",
    )
