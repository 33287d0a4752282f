"""The NF4 cache: quantise once, read the result at every later start.

An entry is a stock bitsandbytes 4-bit model folder, one shard a layer and one for the ends, which
`AutoModelForCausalLM.from_pretrained` opens. Quantised bytes depend on the quantising device, and
on the CPU on thread count and instruction set, so all of these are part of the key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import bitsandbytes as bnb
import torch
from torch import Tensor
from transformers import PretrainedConfig

from poros import atomic
from poros.cache_entries import MANIFEST, STAMPS, nf4_folder, read_json
from poros.errors import PorosStorageError
from poros.events import Event, Warned
from poros.home_paths import typed_path
from poros.loading.file_hashes import hash_files, stamp
from poros.loading.skeleton import nf4_settings
from poros.loading.tensor_writer import write_tensors
from poros.told_sizes import told_size
from poros.weights_index import INDEX_FILE, TensorHeader

_FORMAT = 1
_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # nibble, absmax, nested absmax
_STATE_BYTES = 2000  # code tables and settings, which a stock checkpoint repeats in every linear
_BESIDE_WEIGHTS = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template*", "generation_config.json", "*.tiktoken",
)  # fmt: skip

Emit = Callable[[Event], None]


def location(setting: str) -> Path | None:
    """The folder that ``nf4_cache: auto|off|PATH`` means; None: no cache."""
    if setting == "off":
        return None
    return nf4_folder() if setting == "auto" else typed_path(setting)


def cache_key(source_digest: str, *, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Everything that the quantised bytes depend on."""
    return {
        "format": _FORMAT,
        "source": source_digest,
        "quantisation": json.loads(json.dumps(nf4_settings(dtype).to_dict(), default=str)),
        "dtype": str(dtype),
        "bitsandbytes": bnb.__version__,
        "device": _describe(device),
    }


def entry_for(cache: Path, key: dict[str, Any]) -> Path:
    """Where the key's entry lies, or will lie."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache / f"nf4-{digest[:32]}"


def estimate_bytes(headers: Mapping[str, TensorHeader], layers_path: str) -> int:
    """About how large an entry will be: matrices of the layers in 4 bits, the rest in 16."""
    total = 0.0
    for name, header in headers.items():
        elements = math.prod(header.shape)
        packed = name.startswith(f"{layers_path}.") and len(header.shape) == 2
        total += elements * _NF4_BYTES + _STATE_BYTES if packed else elements * 2
    return int(total)


def is_sound(entry: Path, key: dict[str, Any], *, emit: Emit, full: bool = False) -> bool:
    """Whether the entry is there and holds what was written; a damaged one is removed.

    Args:
        entry: The entry's folder.
        key: What it must be an entry of.
        emit: Takes the warning about a damaged one.
        full: Hash every file, even if none changed since it was hashed last.
    """
    if not entry.is_dir():
        return False
    reason = _damage(entry, key, full=full)
    if reason is not None:
        discard(entry, reason, emit=emit)
    return reason is None


def discard(entry: Path, reason: str, *, emit: Emit) -> None:
    """Remove a damaged entry and say so; the next load writes it anew."""
    message = f"the NF4 cache's entry {entry} is damaged and is made anew: {reason}"
    emit(Warned(code="nf4-cache-damaged", message=message))
    with contextlib.suppress(OSError):
        atomic.remove_dir(entry)


class EntryWriter:
    """Writes an entry's files; a failure is kept, since a model can be loaded without a cache."""

    def __init__(self, folder: Path | None) -> None:
        """None: write nothing."""
        self.folder = folder
        self.failure: Exception | None = None
        self.finished = False
        self._weight_map: dict[str, str] = {}
        self._total_bytes = 0

    def write(self, index: int, tensors: dict[str, Tensor], num_layers: int) -> None:
        """Write layer `index`; the index behind the last layer's is the ends'."""
        if self.folder is None or self.failure is not None:
            return
        name = f"model-{index + 1:05d}-of-{num_layers + 1:05d}.safetensors"
        try:
            write_tensors(tensors, self.folder / name, metadata={"format": "pt"})
        except OSError as error:
            self.failure = error
        self._weight_map |= dict.fromkeys(tensors, name)
        self._total_bytes += sum(t.numel() * t.element_size() for t in tensors.values())

    def finish(self, config: PretrainedConfig, beside: Path | None) -> None:
        """Write config and index, and copy the tokenizer from the folder `beside`."""
        self.finished = True
        if self.folder is None or self.failure is not None:
            return
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": self._weight_map}
        try:
            config.save_pretrained(self.folder)
            (self.folder / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n")
            patterns = _BESIDE_WEIGHTS if beside is not None else ()
            for path in {p for pattern in patterns for p in (beside or Path()).glob(pattern)}:
                if path.is_file():
                    shutil.copyfile(path, self.folder / path.name)
        except OSError as error:
            self.failure = error


@contextlib.contextmanager
def writing(
    entry: Path, key: dict[str, Any], *, name: str, needed_bytes: int, emit: Emit
) -> Iterator[EntryWriter]:
    """Yield a writer whose files become the entry; whatever fails in it only costs the cache."""
    about = {"key": key, "model": name}
    stack = contextlib.ExitStack()
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        atomic.sweep_temps(entry.parent)
        _announce(entry, needed_bytes, emit)
        writing_folder = atomic.atomic_dir(
            entry, manifest=MANIFEST, about=about, needed_bytes=needed_bytes, if_exists="keep"
        )
        folder = stack.enter_context(writing_folder)
    except (OSError, PorosStorageError) as error:
        _warn_unwritten(entry, error, emit)
        yield EntryWriter(None)
        return
    writer = EntryWriter(folder)
    try:
        with stack:
            yield writer
            if writer.failure is not None:
                raise _CacheUnwritten
        _stamp_entry(entry)
    except (_CacheUnwritten, PorosStorageError) as error:
        if not writer.finished:
            raise
        _warn_unwritten(entry, writer.failure or error, emit)


class _CacheUnwritten(Exception):  # noqa: N818  # a signal, not an error
    """The writer kept a failure; leave without making the folder an entry."""


def _describe(device: torch.device) -> dict[str, Any]:
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        return {"name": torch.cuda.get_device_name(device), "capability": list(capability)}
    return {
        "name": device.type,
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "num_threads": torch.get_num_threads(),
    }


def _damage(entry: Path, key: dict[str, Any], *, full: bool) -> str | None:
    """What is wrong with an entry; None: nothing."""
    manifest = read_json(entry / MANIFEST)
    files = manifest.get("files")
    if manifest.get("key") != key or not isinstance(files, dict) or not files:
        return f"{MANIFEST} is not the one that was written"
    try:
        stamps = {name: stamp(entry / name) for name in files}
        wrong = [n for n, found in stamps.items() if found[0] != files[n]["num_bytes"]]
        if wrong:
            return f"{', '.join(wrong)} changed in size"
        if not full and read_json(entry / STAMPS) == stamps:
            (entry / STAMPS).touch()  # when the entry was used last
            return None
        hashes = hash_files(entry / name for name in files)
    except (OSError, LookupError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    wrong = [name for name in files if hashes[entry / name] != files[name]["sha256"]]
    if wrong:
        return f"{', '.join(wrong)} changed"
    _write_stamps(entry, stamps)
    return None


def _stamp_entry(entry: Path) -> None:
    """Note that the files are those whose hashes the manifest has: they have just been made."""
    files = read_json(entry / MANIFEST).get("files", {})
    with contextlib.suppress(OSError):
        _write_stamps(entry, {name: stamp(entry / name) for name in files})


def _write_stamps(entry: Path, stamps: Mapping[str, list[int]]) -> None:
    with contextlib.suppress(OSError, PorosStorageError):
        atomic.write_file(entry / STAMPS, json.dumps(stamps))


def _announce(entry: Path, needed_bytes: int, emit: Emit) -> None:
    """Say what the entry will take, or refuse to fill the disk with it."""
    free = atomic.free_bytes(entry.parent)
    if free < needed_bytes:
        raise PorosStorageError(
            f"it needs about {told_size(needed_bytes)}, free are {told_size(free)}",
            where=str(entry.parent),
        )
    message = f"the NF4 cache takes about {told_size(needed_bytes)} in {entry}"
    emit(Warned(code="nf4-cache-size", message=message))


def _warn_unwritten(entry: Path, error: Exception, emit: Emit) -> None:
    message = f"no NF4 cache is written under {entry.parent}: {error}"
    emit(Warned(code="nf4-cache-unwritten", message=message))
