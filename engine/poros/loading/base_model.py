"""From checkpoint bytes to a model whose layers lie on the host in blocks.

[Note: device memory while loading]
One linear at a time is on the device: its 16-bit weight, its NF4, and what bitsandbytes needs in
between. Its result goes to the host before the next one comes. Embeddings, final norm and head
never touch the device here: `place_ends` moves them when the trainer wants them there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from poros.arch_registry import find_architecture
from poros.arch_table import ArchSpec
from poros.errors import PorosConfigError, PorosModelError
from poros.events import Event, PhaseProgressed, Warned
from poros.loading import nf4, nf4_cache
from poros.loading.byte_source import ByteSource, SafetensorsSource
from poros.loading.checkpoint_match import FLOATS, CheckpointMatch, Expected, match_checkpoint
from poros.loading.phases import device_peak, memory_errors, phase_events
from poros.loading.skeleton import (
    Skeleton,
    build_skeleton,
    checkpoint_tensors,
    finish,
    resident_paths,
)
from poros.loading.stock_source import StockSource
from poros.model_config import check_config, is_prequantised
from poros.streaming.block import Block, FrozenTensor
from poros.weights_index import short_list

DENSE_DTYPES = {
    "bf16": torch.bfloat16,
    "bf16_bitwise": torch.bfloat16,
    "fp16": torch.float16,
}
"""The types that stream without quantising; the second is another name of the first."""

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


def load_base_model(
    source: ByteSource,
    *,
    device: torch.device,
    quantization: str = "nf4",
    dtype: torch.dtype = torch.bfloat16,
    layers_per_block: int = 1,
    cache: Path | None = None,
    attn_implementation: str = "sdpa",
    emit: Emit,
    trust_remote_code: bool = False,
    load_strategy: str = "auto",
) -> BaseModel:
    """Load a model, quantising each linear once on `device` or taking it from the cache.

    Args:
        source: Where the bytes come from.
        device: Where the model will be trained.
        quantization: ``nf4``, ``bf16`` or ``fp16``.
        dtype: Arithmetic of ``nf4``; a dense type is its own.
        layers_per_block: How many layers travel together.
        cache: The NF4 cache's folder; None: neither read nor written.
        attn_implementation: transformers' name of it.
        emit: Takes the events.
        trust_remote_code: Accept a config that names code, which is not run; warned about.
        load_strategy: ``gpu`` quantises by stock's `from_pretrained`, without the cache, in the
            device memory of all of the model.

    Raises:
        PorosModelError: Files or config are damaged, refused or disagree.
    """
    architecture = find_architecture(source.config.get("model_type"))
    check_config(
        source.config, architecture, where=source.name, trust_remote_code=trust_remote_code
    )
    if "auto_map" in source.config:
        emit(Warned(code="remote-code", message="auto_map is ignored: no code of the model runs"))
    plan = _Plan(
        device, quantization, DENSE_DTYPES.get(quantization, dtype), layers_per_block,
        attn_implementation, emit, is_prequantised(source.config, where=source.name),
    )  # fmt: skip
    plan.check()
    with memory_errors():
        if load_strategy == "gpu" and quantization == "nf4" and not plan.prequantised:
            return _load_through_stock(source, plan)
        if cache is None or quantization != "nf4" or plan.prequantised:
            return _Loading(source, plan).run(source.digest())
        return _load_through_cache(source, plan, cache)


def place_ends(base: BaseModel, device: torch.device) -> None:
    """Move everything outside the layers to `device`."""
    for path in resident_paths(base.model, base.architecture):
        base.model.get_submodule(path).to(device)


@dataclass(frozen=True)
class _Plan:
    device: torch.device
    quantization: str
    dtype: torch.dtype
    layers_per_block: int
    attn_implementation: str
    emit: Emit
    prequantised: bool

    def check(self) -> None:
        if self.quantization not in ("nf4", *DENSE_DTYPES):
            raise PorosConfigError(
                f"unknown quantization {self.quantization!r}",
                remediation=f"one of nf4, {', '.join(DENSE_DTYPES)}",
            )
        if self.prequantised and self.quantization != "nf4":
            raise PorosModelError(
                f"the weights are NF4 already, but quantization is {self.quantization}",
                remediation="set quantization: nf4, or give the 16-bit original",
            )
        if self.quantization == "nf4":
            nf4.check_bitsandbytes(self.device)


def _load_through_cache(source: ByteSource, plan: _Plan, cache: Path) -> BaseModel:
    key = nf4_cache.cache_key(source.digest(), dtype=plan.dtype, device=plan.device)
    entry = nf4_cache.entry_for(cache, key)
    if nf4_cache.is_sound(entry, key, emit=plan.emit):
        try:
            stored = SafetensorsSource(entry, name=source.name, mapped=True)
            base = _Loading(stored, replace(plan, prequantised=True)).run(source.digest())
        except PorosModelError as error:
            nf4_cache.discard(entry, str(error), emit=plan.emit)
        else:
            return replace(base, from_cache=True, prequantised=False, cache_entry=entry)
    layers_path = find_architecture(source.config.get("model_type")).layers_path
    headers = {name: source.header(name) for name in source.names()}
    needed_bytes = nf4_cache.estimate_bytes(headers, layers_path)
    with nf4_cache.writing(
        entry, key, name=source.name, needed_bytes=needed_bytes, emit=plan.emit
    ) as writer:
        base = _Loading(source, plan, writer).run(source.digest())
        writer.finish(base.model.config, source.folder)
    return replace(base, cache_entry=entry if entry.is_dir() else None)


def _load_through_stock(source: ByteSource, plan: _Plan) -> BaseModel:
    # Stock would fill a missing tensor with random numbers; this refuses it first.
    hf_config = _Loading(source, plan).skeleton.model.config
    with phase_events("quantise", plan.emit), device_peak(plan.device) as peak:
        stock = StockSource(source, hf_config, dtype=plan.dtype, device=plan.device)
    base = _Loading(stock, replace(plan, prequantised=True)).run(source.digest())
    peak_bytes = max(peak[0], base.load_device_peak_bytes)
    return replace(base, prequantised=False, load_device_peak_bytes=peak_bytes)


class _Loading:
    """One load: the skeleton, and what fills it."""

    def __init__(
        self, source: ByteSource, plan: _Plan, writer: nf4_cache.EntryWriter | None = None
    ) -> None:
        self.source, self.plan, self.writer = source, plan, writer
        self.tables = nf4.CodeTables(plan.device)
        self.skeleton: Skeleton = build_skeleton(
            source.config,
            quantization=plan.quantization,
            dtype=plan.dtype,
            attn_implementation=plan.attn_implementation,
            name=source.name,
        )
        self.headers = {name: source.header(name) for name in source.names()}
        self.match: CheckpointMatch = match_checkpoint(
            self.headers,
            self._expected(),
            tied=self.skeleton.tied,
            architecture=self.skeleton.architecture,
            where=source.name,
        )

    def run(self, digest: str) -> BaseModel:
        """Fill everything; the ends stay on the host."""
        device, model = self.plan.device, self.skeleton.model
        phase = "load" if self.plan.prequantised or self.plan.quantization != "nf4" else "quantise"
        with phase_events(phase, self.plan.emit), device_peak(device) as peak:
            self._report_left_out()
            self._check_tied_copies()
            self._fill_ends()
            blocks = list(self._lay_out_blocks(phase))
        finish(self.skeleton)
        self._set_generation_config()
        self._check_complete()
        return BaseModel(
            model=model,
            layers=self.skeleton.layers,
            blocks=blocks,
            architecture=self.skeleton.architecture,
            resident_bytes=sum(t.numel() * t.element_size() for t in self._ends().values()),
            load_device_peak_bytes=peak[0],
            from_cache=False,
            prequantised=self.plan.prequantised,
            digest=digest,
        )

    def _expected(self) -> dict[str, Expected]:
        expected: dict[str, Expected] = {}
        packed = {}
        if self.plan.prequantised:
            for path, module in self.skeleton.model.named_modules():
                if isinstance(module, Linear4bit):
                    packed[f"{path}.weight"] = module
        for name, tensor in checkpoint_tensors(self.skeleton.model).items():
            if name in packed:
                expected |= nf4.expected_packed(name, packed[name], self.headers)
            else:
                expected[name] = Expected(FLOATS, tuple(tensor.shape))
        return expected

    def _lay_out_blocks(self, phase: str) -> Iterator[Block]:
        skeleton, size = self.skeleton, self.plan.layers_per_block
        layers = list(zip(skeleton.layer_prefixes, skeleton.layers, strict=True))
        for first in range(0, len(layers), size):
            frozen: list[FrozenTensor] = []
            for place, (prefix, layer) in enumerate(layers[first : first + size]):
                self._fill(layer, prefix)
                if self.writer is not None:
                    self.writer.write(first + place, nf4.stored_tensors(layer, prefix), len(layers))
                frozen += nf4.frozen_tensors(layer, f"{place}.")
                self._progress(phase, first + place + 1, len(layers))
            yield Block.lay_out(first // size, frozen, device=self.plan.device)

    def _fill_ends(self) -> None:
        inside = tuple(self.skeleton.layer_prefixes)
        for path, module in self.skeleton.model.named_modules():
            if not f"{path}.".startswith(inside):
                self._fill_module(module, f"{path}." if path else "")
        if self.writer is not None:
            num_layers = len(self.skeleton.layers)
            ends = {name: t for name, t in self._ends().items() if name in self.match.stored_name}
            self.writer.write(num_layers, ends, num_layers)

    def _fill(self, layer: nn.Module, prefix: str) -> None:
        for path, module in layer.named_modules():
            self._fill_module(module, f"{prefix}{path}." if path else prefix)

    def _fill_module(self, module: nn.Module, prefix: str) -> None:
        """Give one module, without its children, its tensors."""
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            name = prefix + leaf
            if name in self.skeleton.tied:
                continue
            if isinstance(module, Linear4bit) and leaf == "weight":
                self._fill_linear(module, name)
            else:
                # A copy of its own: a mapped file must not have to outlive the load.
                tensor = self._read_to_host(name, parameter.dtype)
                tensor = tensor.clone() if self.plan.prequantised else tensor
                setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))
        for leaf, buffer in list(module.named_buffers(recurse=False)):
            if leaf not in module._non_persistent_buffers_set:
                setattr(module, leaf, self._read_to_host(prefix + leaf, buffer.dtype))

    def _fill_linear(self, linear: Linear4bit, name: str) -> None:
        stored = self.match.stored_name
        if not self.plan.prequantised:
            weight = self.source.read(stored[name], self.plan.device, self.plan.dtype)
            nf4.quantise(linear, weight, self.tables)
            return
        stats = {
            key: self._read_to_host(f"{name}.{key}") for key in nf4.stat_keys(name, self.headers)
        }
        try:
            nf4.adopt(linear, self._read_to_host(name), stats, self.tables)
        except ValueError as error:
            raise PorosModelError(
                str(error),
                where=f"tensor {name} in {self.source.name}",
                remediation="download the model again, or use its 16-bit original",
            ) from error

    def _read_to_host(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return self.source.read_to_host(self.match.stored_name[name], self.plan.device, dtype)

    def _ends(self) -> dict[str, Tensor]:
        """Tensors outside the layers, tied ones once, non-persistent buffers among them."""
        inside = tuple(self.skeleton.layer_prefixes)
        model = self.skeleton.model
        named = [*model.named_parameters(), *model.named_buffers()]
        return {n: t for n, t in named if not n.startswith(inside) and n not in self.skeleton.tied}

    def _check_tied_copies(self) -> None:
        for copy, original in self.match.tied_copies.items():
            a = self.source.read_to_host(copy, self.plan.device)
            b = self.source.read_to_host(original, self.plan.device)
            if a.dtype != b.dtype or not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
                raise PorosModelError(
                    f"{copy} and {original} differ, but the config ties them",
                    where=self.source.name,
                    remediation="set tie_word_embeddings to false in config.json if they are two",
                )

    def _report_left_out(self) -> None:
        left_out = self.match.left_out_bytes
        if left_out:
            message = (
                f"{len(left_out)} tensors of the checkpoint ({sum(left_out.values())} bytes) are "
                f"left out, the model has no use for them: {short_list(left_out)}"
            )
            self.plan.emit(Warned(code="tensors-left-out", message=message))

    def _set_generation_config(self) -> None:
        folder = self.source.folder
        if folder is None or not (folder / "generation_config.json").exists():
            return
        try:
            config = GenerationConfig.from_pretrained(folder)
        except (OSError, ValueError, TypeError) as error:
            message = f"generation_config.json is not usable, defaults are: {error}"
            self.plan.emit(Warned(code="generation-config", message=message))
        else:
            self.skeleton.model.generation_config = config

    def _check_complete(self) -> None:
        """The last guard: a family's record that overlooks a module must not train on nothing."""
        model = self.skeleton.model
        resident = resident_paths(model, self.skeleton.architecture)
        inside = (*self.skeleton.layer_prefixes, *(f"{path}." for path in resident))
        named = [*model.named_parameters(), *model.named_buffers()]
        wrong = [n for n, t in named if t.is_meta or not n.startswith(inside)]
        if wrong:
            raise PorosModelError(
                f"neither in a layer nor among the resident modules, or not filled: "
                f"{short_list(wrong)}",
                where=f"the record of {self.skeleton.architecture.model_type}",
                remediation="report it: the family's record in arch_table.py is incomplete",
            )

    def _progress(self, phase: str, done: int, total: int) -> None:
        self.plan.emit(PhaseProgressed(phase=phase, done=done, total=total, unit="layers"))
