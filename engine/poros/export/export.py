"""`poros export`: read base and adapter, write the merged model, look at what it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase

from poros import atomic
from poros.adapter_files import AdapterFolder, find_adapter
from poros.errors import PorosError, PorosOutputError, PorosStorageError, escape_control
from poros.events import Event, PhaseProgressed, Warned
from poros.export.lean_model import lean_model
from poros.export.logit_check import PROMPTS, Compared, compare, logits_of, prompt_ids
from poros.export.merge import DTYPE_NAMES, DTYPES, Merge, merged_config, paired
from poros.export.modelfile import modelfile
from poros.export.shards import parse_size, plan_shards, write_shards
from poros.home_paths import typed_path
from poros.hub_names import FETCHED
from poros.loading.byte_source import SafetensorsSource
from poros.loading.hub import base_of, resolve_model
from poros.loading.lora_merge import LoraWeights
from poros.loading.phases import memory_errors, phase_events
from poros.loading.text_part import open_source
from poros.training.inputs import read_tokenizer
from poros.weights_index import INDEX_FILE

_SMALL_FILES_BYTES = 50_000_000
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_NOT_COPIED = ("config.json", INDEX_FILE)

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        output: The new folder.
        adapter: The adapter's.
        base: What it was merged into.
        dtype: Of the merged tensors; ``as stored`` if they have the base's types.
        num_merged: Tensors that the adapter changed.
        num_files: Of weights.
        num_bytes: Of weights.
        untied: Tensors that the base shares and the merged model can't.
        logits: Merged model against base and adapter; empty if that was not asked for.
    """

    output: str
    adapter: str
    base: str
    dtype: str
    num_merged: int
    num_files: int
    num_bytes: int
    untied: list[str]
    logits: list[Compared]

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def export(
    adapter: str,
    output: Path,
    *,
    emit: Emit,
    base: str | None = None,
    dtype: str = "auto",
    max_shard_size: str = "4GB",
    compared: bool = True,
) -> Exported:
    """Merge an adapter into its 16-bit base, on the CPU, a few rows of a matrix at a time.

    Args:
        adapter: Its folder, a run's folder, or the beginning of a run's number.
        output: The new model's folder; must not be there.
        emit: Takes the events.
        base: The base model, if not the one that the adapter names.
        dtype: ``bf16``, ``fp16``, ``fp32``, or ``auto`` for the base's own.
        max_shard_size: Most bytes of a file, such as ``4GB``.
        compared: Whether logits are looked at in the end.

    Raises:
        PorosError: The kind says what is wrong; nothing of the output is left then.
    """
    max_bytes = parse_size(max_shard_size)
    output = typed_path(output)
    _refuse_place(output)
    found = find_adapter(adapter)
    if found.note:
        emit(Warned(code="adapter", message=found.note))
    weights = LoraWeights(found)
    with base_of(found, base) as named:
        folder = resolve_model(named, emit)
    chosen = DTYPES.get(dtype)
    merge = Merge(open_source(folder, name=named), weights, dtype=chosen, emit=emit)
    shards = plan_shards(merge.tensors, max_bytes)
    num_bytes = sum(tensor.shape.num_bytes for tensor in merge.tensors)
    _refuse_full(output, num_bytes)
    tokenizer = _tokenizer(found, folder, emit)
    with (
        memory_errors(),
        atomic.atomic_dir(output, needed_bytes=num_bytes + _SMALL_FILES_BYTES) as temp,
    ):
        with phase_events("merge", emit):
            write_shards(shards, temp, merge.pieces, _progress(num_bytes, emit))
        text = json.dumps(merged_config(merge, chosen), indent=2, ensure_ascii=False)
        (temp / "config.json").write_text(text + "\n", encoding="utf-8")
        _copy_small_files(folder, found, temp)
        if tokenizer is not None:
            text = modelfile(tokenizer, _generation_config(temp))
            (temp / "Modelfile").write_text(text, encoding="utf-8")
        logits: list[Compared] = []
        if compared and tokenizer is not None:
            with phase_events("compare", emit):
                logits = _compared(merge, temp, tokenizer, emit)
    return Exported(
        output=str(output),
        adapter=str(found.path),
        base=named,
        dtype="as stored" if chosen is None else DTYPE_NAMES[chosen],
        num_merged=merge.num_merged,
        num_files=len(shards),
        num_bytes=num_bytes,
        untied=sorted(merge.untied),
        logits=logits,
    )


def _compared(
    merge: Merge, folder: Path, tokenizer: PreTrainedTokenizerBase, emit: Emit
) -> list[Compared]:
    ids = prompt_ids(tokenizer, PROMPTS)
    adapted = logits_of(lean_model(merge.filler, merge.adapter), ids)
    merged = logits_of(lean_model(paired(SafetensorsSource(folder), emit)), ids)
    return compare(PROMPTS, adapted, merged)


def _tokenizer(found: AdapterFolder, folder: Path, emit: Emit) -> PreTrainedTokenizerBase | None:
    """The merged model's; a base without one is exported without."""
    origin = found.path if _has_tokenizer(found.path) else folder
    what = "the base has no tokenizer"
    # Of a folder without one, transformers makes an empty one for some families.
    if any((origin / name).is_file() for name in _TOKENIZER_FILES):
        try:
            return read_tokenizer(origin)
        except PorosError as error:
            what = error.message
    message = f"{what}: no Modelfile is written and no logits are compared"
    emit(Warned(code="tokenizer", message=message))
    return None


def _has_tokenizer(folder: Path) -> bool:
    return (folder / "tokenizer_config.json").is_file() and any(
        (folder / name).is_file() for name in _TOKENIZER_FILES
    )


def _copy_small_files(folder: Path, found: AdapterFolder, temp: Path) -> None:
    """Tokenizer, template and generation settings; the adapter's own tokenizer goes first."""
    patterns = [p for p in FETCHED if "safetensors" not in p and p not in _NOT_COPIED]
    folders = [found.path, folder] if _has_tokenizer(found.path) else [folder]
    names = {"generation_config.json"}
    for origin in folders[:1]:
        names |= {path.name for pattern in patterns for path in origin.glob(pattern)}
    for name in sorted(names):
        for origin in folders:
            if (origin / name).is_file():
                shutil.copyfile(origin / name, temp / name)
                break


def _generation_config(folder: Path) -> GenerationConfig | None:
    try:
        return GenerationConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError):
        return None


def _refuse_place(output: Path) -> None:
    where = escape_control(str(output))
    if not output.parent.is_dir():
        raise PorosOutputError(
            "the output's parent folder is missing",
            where=where,
            remediation=f"make it first: mkdir -p {escape_control(str(output.parent))}",
        )
    if output.exists() or output.is_symlink():
        raise PorosOutputError(
            "the output is there already, and nothing is written over",
            where=where,
            remediation="give another name to -o, or remove it",
        )


def _refuse_full(output: Path, num_bytes: int) -> None:
    free = atomic.free_bytes(output.parent)
    if 0 < free < num_bytes + _SMALL_FILES_BYTES:
        raise PorosStorageError(
            f"the merged model needs {num_bytes} bytes, {free} are free",
            where=escape_control(str(output.parent)),
            remediation="free some space, or give a folder on another disk to -o",
        )


def _progress(total: int, emit: Emit) -> Callable[[int], None]:
    done = 0

    def add(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        emit(PhaseProgressed(phase="merge", done=done, total=total, unit="bytes"))

    return add
