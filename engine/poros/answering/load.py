"""Base and adapter put together for answers: loader, ring and ends as in a training run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poros.adapter_files import WEIGHTS_FILE, AdapterFolder, find_adapter
from poros.answering.speaker import ASK_LESS, Speaker
from poros.config import PorosConfig
from poros.config_yaml import read_document
from poros.errors import PorosError, PorosModelError, escape_control
from poros.events import Event, Warned
from poros.loading.byte_source import ByteSource
from poros.loading.hub import base_of
from poros.model_config import read_config
from poros.training.answers import AnswerRoom, context_tokens, plan_answers
from poros.training.cap import held_to
from poros.training.inputs import choose_device, open_model, read_tokenizer
from poros.training.placement import Placement
from poros.training.streamed_model import load_configured, stream_model
from poros.weights_index import read_file_header

_OF_THE_RUN = (
    "quantization", "torch_dtype", "attn_implementation", "nf4_cache", "host_tier",
    "trust_remote_code", "blockwise_arch_check",
)  # fmt: skip
_UNLOADED = ("use_dora", "modules_to_save", "trainable_token_indices")
_WHOLE = ("BF16", "F16", "F32")
"""Stored as they are: a 4-bit tensor has another shape than its matrix."""
_UNMERGED = ("trainable_token_indices",)

Emit = Callable[[Event], None]


def load_speaker(
    adapter: str,
    *,
    emit: Emit,
    base: str | None = None,
    device: str = "auto",
    quantization: str | None = None,
    vram_budget: float | str = "auto",
) -> Speaker:
    """Load a base as its adapter was trained on it.

    Args:
        adapter: Its folder, a run's folder, or the beginning of a run's number.
        emit: Takes the events.
        base: The base model, if not the one that the adapter names.
        device: ``auto``, ``cpu`` or ``cuda:N``.
        quantization: Of the base; None: the run's, or NF4.
        vram_budget: ``auto`` keeps the blocks on the device that fit; ``min`` none; or a number
            of GB, which is then the most that is taken.

    Raises:
        PorosError: The kind says what is wrong.
    """
    found = find_adapter(adapter, whole_models=True)
    if found.note:
        emit(Warned(code="adapter", message=found.note))
    _refuse_kinds(found)
    with base_of(found, base) as named:
        config = _settings(found, named, device, quantization, vram_budget)
        place = choose_device(config.device)
        opened = open_model(config, emit)
    if not found.whole:
        _refuse_other_shapes(found, opened.source)  # before the base is quantised for nothing
    tokenizer = read_tokenizer(_tokenizer_folder(found, opened.folder))
    loaded = load_configured(config, opened.source, opened.architecture, device=place, emit=emit)
    # A whole model gets an adapter that is never used.
    path = None if found.whole else found.path
    with held_to(config.vram_budget, place), warnings.catch_warnings():
        # PEFT's, of a base that is named in another way than it was in training.
        warnings.simplefilter("ignore")
        plan = plan_answers(loaded, config, place)
        streamed = stream_model(loaded, plan, config, device=place, emit=emit, adapter=path)
    placement = Placement.of(streamed, None, emit=emit)
    placement.way_out = f"add --vram-budget min, or {ASK_LESS}"
    return Speaker(
        model=streamed.model.eval(),
        tokenizer=tokenizer,
        base=named,
        context_tokens=context_tokens(loaded.model.config),
        memory=AnswerRoom(placement, emit, vram_budget=config.vram_budget, ask_less=ASK_LESS),
        has_adapter=not found.whole,
    )


def _settings(
    found: AdapterFolder,
    base: str,
    device: str,
    quantization: str | None,
    vram_budget: float | str,
) -> PorosConfig:
    """The run's own settings as far as they say how the base is loaded, and the command's."""
    own: dict[str, Any] = {}
    rank = found.config.get("r")
    if found.run is not None:
        try:
            values = read_document(found.run / "config.yaml").values
            own = {key: values[key] for key in _OF_THE_RUN if key in values}
        except (PorosError, OSError):
            own = {}
    if quantization is None and found.whole:
        quantization = _as_stored(found.path)
    if quantization is not None and quantization != own.get("quantization"):
        own = {"quantization": quantization, **_without(own, "quantization", "torch_dtype")}
    if vram_budget not in ("auto", "min"):
        own["vram_budget"] = float(vram_budget)
    else:
        own["vram_budget"] = vram_budget
    if isinstance(rank, int) and rank > 0:
        own["lora_rank"] = rank  # how large the adapter is, for the plan
    return PorosConfig(model_name_or_path=base, device=device, **own)


def _as_stored(folder: Path) -> str:
    """The precision of a whole model, which was not trained to be quantised."""
    config = read_config(folder)
    if config.get("quantization_config"):
        return "nf4"
    text = config.get("text_config")
    stored = [part.get("dtype") or part.get("torch_dtype") for part in (config, text) if part]
    return "fp16" if "float16" in stored else "bf16"


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _refuse_kinds(found: AdapterFolder) -> None:
    kinds = [key for key in _UNLOADED if found.config.get(key)]
    if kinds:
        raise PorosModelError(
            f"an adapter with {', '.join(kinds)} can't be streamed",
            where=escape_control(str(found.path)),
            remediation="load it with PEFT on its stock base (README, The adapter)"
            if set(kinds) & set(_UNMERGED)
            else "merge it first: poros export, then poros chat with the merged folder",
        )


def _refuse_other_shapes(found: AdapterFolder, source: ByteSource) -> None:
    """Refuse an adapter whose linears have other inputs or outputs than the base's."""
    names = set(source.names())
    for key, tensor in read_file_header(found.path / WEIGHTS_FILE).items():
        for ending, side in ((".lora_A.weight", 1), (".lora_B.weight", 0)):
            name = f"{key.removeprefix('base_model.model.').removesuffix(ending)}.weight"
            if not key.endswith(ending) or name not in names:
                continue
            header, shape = source.header(name), tensor.header.shape
            is_whole = header.dtype in _WHOLE and len(header.shape) == len(shape) == 2
            if is_whole and shape[side] != header.shape[side]:
                wanted = [*shape]
                wanted[side] = header.shape[side]
                raise PorosModelError(
                    f"the adapter belongs to another model: {key} has shape {[*shape]}, this base"
                    f" wants {wanted}",
                    where=escape_control(str(found.path)),
                    remediation="name the base it was trained on: --base MODEL",
                )


def _tokenizer_folder(found: AdapterFolder, folder: Path) -> Path:
    own = (found.path / "tokenizer_config.json").is_file()
    return found.path if own and (found.path / "tokenizer.json").is_file() else folder
