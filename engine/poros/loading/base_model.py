"""From checkpoint bytes to a model whose layers lie on the host in blocks.

[Note: device memory while loading]
One linear at a time is on the device: its 16-bit weight, its NF4, and what bitsandbytes needs in
between. Its result goes to the host before the next one comes. Embeddings, final norm and head
never touch the device here: `place_ends` moves them when the trainer wants them there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from poros.arch_table import ArchSpec
from poros.cache_hold import Hold, hold
from poros.errors import PorosModelError, PorosStorageError
from poros.events import Event, Warned
from poros.host_room import rss_bytes
from poros.loading import nf4_cache
from poros.loading.byte_source import ByteSource, SafetensorsSource
from poros.loading.model_filler import DENSE_DTYPES, Filled, LoadPlan, ModelFiller
from poros.loading.phases import device_peak, memory_errors, phase_events
from poros.loading.probe import architecture_of
from poros.loading.record_check import RecordError, resident_paths
from poros.loading.stock_source import StockSource
from poros.loading.text_part import TextPart
from poros.loading.tier_choice import tier_for, tier_taken
from poros.model_config import check_config, is_prequantised
from poros.streaming.block import Block
from poros.streaming.host_tier import PLAIN, make_tier

__all__ = ["DENSE_DTYPES", "BaseModel", "load_base_model", "place_ends"]

Emit = Callable[[Event], None]


@dataclass
class BaseModel:
    """A frozen model, its layers laid out in blocks on the host.

    Attributes:
        model: Ends (embeddings, rotary buffers, final norm, head) on the host, layers' tensors
            empty placeholders on the device.
        layers: The decoder layers in order.
        blocks: What travels, `layers_per_block` layers each.
        architecture: The family's record.
        resident_bytes: Size of the ends, tied tensors once.
        load_device_peak_bytes: The most device memory that loading took; 0 on the CPU.
        from_cache: Whether the NF4 cache had it.
        prequantised: Whether the model's own files are NF4.
        digest: Sha256 of the source.
        cache_entry: The NF4 cache's folder for it, which `from_pretrained` opens; None: no cache.
        cache_hold: Keeps that folder from being removed by commands.
        host_tier: Where the blocks lie: ``registered``, ``pageable`` or ``disk``; ``memory`` on the
            CPU, which has nothing to register.
        rss_before_bytes: What the process had before the load.
    """

    model: PreTrainedModel
    layers: list[nn.Module]
    blocks: list[Block]
    architecture: ArchSpec
    resident_bytes: int
    load_device_peak_bytes: int
    from_cache: bool
    prequantised: bool
    digest: str
    cache_entry: Path | None = None
    cache_hold: Hold | None = None
    host_tier: str = "memory"
    rss_before_bytes: int = 0


Meanwhile = Callable[[BaseModel], None]


def load_base_model(
    source: ByteSource,
    *,
    device: torch.device,
    quantization: str = "nf4",
    dtype: torch.dtype = torch.bfloat16,
    layers_per_block: int = 1,
    cache: Path | None = None,
    attn_implementation: str | None = None,
    emit: Emit,
    trust_remote_code: bool = False,
    load_strategy: str = "auto",
    architecture: ArchSpec | None = None,
    host_tier: str = "auto",
    meanwhile: Meanwhile | None = None,
) -> BaseModel:
    """Load a model, quantising each linear once on `device` or taking it from the cache.

    Args:
        source: Where the bytes come from.
        device: Where the model will be trained.
        quantization: ``nf4``, ``bf16`` or ``fp16``.
        dtype: Arithmetic of ``nf4``; a dense type is its own.
        layers_per_block: How many layers travel together.
        cache: The NF4 cache's folder; None: neither read nor written.
        attn_implementation: transformers' name of it; None: the first that the family has.
        emit: Takes the events.
        trust_remote_code: Accept a config that names code, which is not run; warned about.
        load_strategy: ``gpu`` quantises by stock's `from_pretrained`, without the cache, in the
            device memory of all of the model.
        architecture: The record to load by; None: the family's own.
        host_tier: ``registered``, ``pageable``, ``disk``, or ``auto`` for what there is room for.
        meanwhile: Is called with the model while its blocks' bytes are still being read: ends are
            there, placeholders too. Again, with another one, if a damaged cache makes the load
            begin anew.

    Raises:
        PorosConfigError: ``disk``, but the blocks are in no file.
        PorosModelError: Files or config are damaged, refused or disagree.
    """
    rss_before_bytes = rss_bytes()
    architecture = architecture or architecture_of(source.config, where=source.name)
    check_config(
        source.config, architecture, where=source.name, trust_remote_code=trust_remote_code
    )
    if "auto_map" in source.config:
        emit(Warned(code="remote-code", message="auto_map is ignored: no code of the model runs"))
    if isinstance(source, TextPart):
        emit(Warned(code="text-part", message=source.told()))
    plan = LoadPlan(
        device, quantization, DENSE_DTYPES.get(quantization, dtype), layers_per_block,
        attn_implementation, emit, is_prequantised(source.config, where=source.name), architecture,
    )  # fmt: skip
    plan.check()
    as_stock = load_strategy == "gpu" and quantization == "nf4" and not plan.prequantised
    as_it_is = cache is None or quantization != "nf4" or plan.prequantised
    cached = not as_stock and not as_it_is
    tier = tier_for(host_tier, source, plan, cached=cached, as_stock=as_stock)
    plan = replace(plan, tier=make_tier(tier, device))
    beside = _Beside(meanwhile or _nothing, tier)
    try:
        with memory_errors():
            if as_stock:
                base = _load_through_stock(source, plan, beside)
            elif cache is None or as_it_is:
                base = _made(ModelFiller(source, plan), source.digest(), beside)
            else:
                base = _load_through_cache(source, plan, cache, beside)
    except _BesideError as carrier:
        raise carrier.error from carrier.error.__cause__
    taken = tier_taken(tier, base.blocks, device, emit=emit)
    return replace(base, host_tier=taken, rss_before_bytes=rss_before_bytes)


def place_ends(base: BaseModel, device: torch.device, *, without: Collection[str] = ()) -> None:
    """Move everything outside the layers to `device`, but for modules that stay on the host."""
    for path in resident_paths(base.model, base.architecture):
        if path not in without:
            base.model.get_submodule(path).to(device)


def _load_through_cache(
    source: ByteSource, plan: LoadPlan, cache: Path, beside: _Beside
) -> BaseModel:
    key = nf4_cache.cache_key(source.digest(), dtype=plan.dtype, device=plan.device)
    entry = nf4_cache.entry_for(cache, key)
    held = hold(entry)
    if nf4_cache.is_sound(entry, key, emit=plan.emit):
        try:
            stored = SafetensorsSource(entry, name=source.name)
            again = replace(plan, prequantised=True)
            base = _made(ModelFiller(stored, again), source.digest(), beside)
        except RecordError:
            raise
        except PorosModelError as error:
            nf4_cache.discard(entry, str(error), emit=plan.emit)
        else:
            return replace(
                base, from_cache=True, prequantised=False, cache_entry=entry, cache_hold=held
            )
    if plan.tier.files is not None:
        peak_bytes = _write_entry(source, plan, entry, key)
        gc.collect()  # the model that it was written from: linears and weights hold each other
        base = _load_through_cache(source, plan, cache, beside)  # it is sound now, and found
        peak_bytes = max(peak_bytes, base.load_device_peak_bytes)
        return replace(base, from_cache=False, load_device_peak_bytes=peak_bytes)
    headers = {name: source.header(name) for name in source.names()}
    needed_bytes = nf4_cache.estimate_bytes(headers, plan.architecture.layers_path)
    with nf4_cache.writing(
        entry, key, name=source.name, needed_bytes=needed_bytes, emit=plan.emit
    ) as writer:
        base = _made(ModelFiller(source, plan, writer), source.digest(), _nothing)
        writer.finish(base.model.config, source.folder)
    beside(base)
    there = entry if entry.is_dir() else None
    return replace(base, cache_entry=there, cache_hold=hold(entry))


def _write_entry(source: ByteSource, plan: LoadPlan, entry: Path, key: dict[str, Any]) -> int:
    """Quantise into the cache alone, for blocks that are to be read from it; as `write`."""
    headers = {name: source.header(name) for name in source.names()}
    needed_bytes = nf4_cache.estimate_bytes(headers, plan.architecture.layers_path)
    in_memory, peak_bytes = replace(plan, tier=PLAIN), 0
    with nf4_cache.writing(
        entry, key, name=source.name, needed_bytes=needed_bytes, emit=plan.emit
    ) as writer:
        if writer.folder is not None:
            filler = ModelFiller(source, in_memory, writer)
            peak_bytes = filler.write()
            writer.finish(filler.skeleton.model.config, source.folder)
    if not nf4_cache.is_sound(entry, key, emit=plan.emit):
        raise PorosStorageError(
            "the blocks are to be read from the NF4 cache, which could not be written",
            where=str(entry.parent),
            remediation="free some disk, set nf4_cache to another folder, or host_tier: registered",
        )
    return peak_bytes


def _load_through_stock(source: ByteSource, plan: LoadPlan, beside: _Beside) -> BaseModel:
    # Stock would fill a missing tensor with random numbers; this refuses it first.
    hf_config = ModelFiller(source, plan).skeleton.model.config
    with phase_events("quantise", plan.emit), device_peak(plan.device) as peak:
        stock = StockSource(source, hf_config, dtype=plan.dtype, device=plan.device)
    again = replace(plan, prequantised=True)
    base = _made(ModelFiller(stock, again), source.digest(), beside)
    peak_bytes = max(peak[0], base.load_device_peak_bytes)
    return replace(base, prequantised=False, load_device_peak_bytes=peak_bytes)


def _made(filler: ModelFiller, digest: str, beside: Meanwhile) -> BaseModel:
    with filler.run() as filled:
        base = _base_model(filled, filler.plan, digest)
        beside(base)
    return base


class _BesideError(BaseException):
    """Carries an error of `meanwhile` past what handles those of the load."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class _Beside:
    """`meanwhile`, with its errors told from the load's."""

    def __init__(self, work: Meanwhile, tier: str) -> None:
        self._work, self._tier = work, tier

    def __call__(self, base: BaseModel) -> None:
        try:
            self._work(replace(base, host_tier=self._tier))
        except Exception as error:  # noqa: BLE001 - it is raised again outside the load
            raise _BesideError(error) from None


def _nothing(_: BaseModel) -> None:
    """The load waits for the bytes alone."""


def _base_model(filled: Filled, plan: LoadPlan, digest: str) -> BaseModel:
    return BaseModel(
        model=filled.skeleton.model,
        layers=filled.skeleton.layers,
        blocks=filled.blocks,
        architecture=plan.architecture,
        resident_bytes=filled.resident_bytes,
        load_device_peak_bytes=filled.device_peak_bytes,
        from_cache=False,
        prequantised=plan.prequantised,
        digest=digest,
    )
