"""One load: every tensor of the model gets its bytes, layer by layer, block by block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch
from bitsandbytes.nn.modules import Linear4bit
from torch import Tensor, nn
from transformers import GenerationConfig

from poros.arch_table import ArchSpec
from poros.errors import PorosConfigError, PorosModelError
from poros.events import Event, PhaseProgressed, Warned
from poros.loading import nf4, nf4_cache
from poros.loading.byte_source import TORCH_DTYPES, ByteSource
from poros.loading.checkpoint_match import FLOATS, CheckpointMatch, Expected, match_checkpoint
from poros.loading.phases import device_peak, phase_events
from poros.loading.record_check import resident_paths
from poros.loading.skeleton import Skeleton, build_skeleton, checkpoint_tensors, finish
from poros.loading.text_part import RenamedSource
from poros.streaming.block import Block, FrozenTensor, drop
from poros.streaming.file_reader import FilePart, FileReader
from poros.streaming.host_memory import untouched
from poros.streaming.host_tier import PLAIN, HostTier
from poros.weights_index import short_list

DENSE_DTYPES = {
    "bf16": torch.bfloat16,
    "bf16_bitwise": torch.bfloat16,
    "fp16": torch.float16,
}
"""The types that stream without quantising; the second is another name of the first."""

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class LoadPlan:
    """How a model is loaded."""

    device: torch.device
    quantization: str
    dtype: torch.dtype
    layers_per_block: int
    attn_implementation: str | None
    emit: Emit
    prequantised: bool
    architecture: ArchSpec
    tier: HostTier = PLAIN

    def check(self) -> None:
        """Refuse what contradicts itself.

        Raises:
            PorosConfigError: An unknown quantization.
            PorosModelError: The weights, or bitsandbytes, can't be used so.
        """
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


@dataclass(frozen=True)
class Filled:
    """What a load made.

    Attributes:
        skeleton: Its model is filled: ends on the host, layers' tensors empty placeholders.
        blocks: What travels.
        resident_bytes: Size of the ends, tied tensors once, quantisation statistics included.
        device_peak_bytes: The most device memory that it took; 0 on the CPU.
    """

    skeleton: Skeleton
    blocks: list[Block]
    resident_bytes: int
    device_peak_bytes: int


class ModelFiller:
    """One load: the skeleton, and what fills it."""

    def __init__(
        self, source: ByteSource, plan: LoadPlan, writer: nf4_cache.EntryWriter | None = None
    ) -> None:
        """Build the skeleton and pair its tensors with the source's.

        Raises:
            PorosModelError: Config, record and checkpoint disagree.
        """
        self.plan, self.writer = plan, writer
        # Nobody looks at a layer's bytes before its block: neither bitsandbytes nor the cache.
        is_dense = plan.quantization != "nf4"
        self._defers = writer is None and (plan.prequantised or is_dense)
        self._unread: dict[int, FilePart] = {}
        self._unread_ends: list[tuple[FilePart, Tensor]] = []
        self.tables = nf4.CodeTables(plan.device)
        self.skeleton: Skeleton = build_skeleton(
            source.config,
            quantization=plan.quantization,
            dtype=plan.dtype,
            attn_implementation=plan.attn_implementation,
            name=source.name,
            architecture=plan.architecture,
        )
        self.source = _under_the_models_names(source, self.skeleton)
        self.headers = {name: self.source.header(name) for name in self.source.names()}
        self.match: CheckpointMatch = match_checkpoint(
            self.headers,
            self._expected(),
            tied=self.skeleton.tied,
            architecture=self.skeleton.architecture,
            where=source.name,
        )

    def write(self) -> int:
        """Only write the cache's entry, no layer is kept; the most device memory that it took."""
        assert self.writer is not None
        peaks = device_peak(self.plan.device)
        with phase_events("quantise", self.plan.emit), peaks as peak, FileReader() as reader:
            self._report_left_out()
            self._check_tied_copies()
            self._fill_ends(reader)
            self._check_ends()
            for num_blocks, frozen in enumerate(self._fill_layers(), start=1):
                drop(frozen)
                self._progress("quantise", num_blocks)
        return peak[0]

    @contextlib.contextmanager
    def run(self) -> Iterator[Filled]:
        """Fill everything; the ends stay on the host.

        Inside, all but the blocks' bytes is there; they are there when it ends well.
        """
        phase = "load" if self.plan.prequantised or self.plan.quantization != "nf4" else "quantise"
        with FileReader() as reader:
            with phase_events(phase, self.plan.emit), device_peak(self.plan.device) as peak:
                self._report_left_out()
                self._check_tied_copies()
                blocks = self._lay_out_all(phase, reader)
            finish(self.skeleton)
            self._set_generation_config()
            self._check_filled()
            yield Filled(self.skeleton, blocks, self._resident_bytes(), peak[0])
            if self._defers:
                with phase_events("read", self.plan.emit):
                    self._wait_filled(blocks)

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

    def _lay_out_all(self, phase: str, reader: FileReader) -> list[Block]:
        """Ends first, then the layers; what lies in files comes while the next are laid out."""
        ends = self._fill_ends(reader)
        blocks: list[Block] = []
        for block in self._lay_out_blocks(reader):
            blocks.append(block)
            if not self._defers:
                self._progress(phase, len(blocks))
        for future in ends:
            future.result()
        if not self._defers:
            self._check_ends()
        return blocks

    def _wait_filled(self, blocks: Sequence[Block]) -> None:
        for done, block in enumerate(blocks, start=1):
            block.wait_filled()
            self._progress("read", done)

    def _fill_layers(self) -> Iterator[list[FrozenTensor]]:
        """Block by block, what travels."""
        layers = list(zip(self.skeleton.layer_prefixes, self.skeleton.layers, strict=True))
        size = self.plan.layers_per_block
        for first in range(0, len(layers), size):
            frozen: list[FrozenTensor] = []
            for place, (prefix, layer) in enumerate(layers[first : first + size]):
                self._fill(layer, prefix)
                if self.writer is not None:
                    self.writer.write(first + place, nf4.stored_tensors(layer, prefix), len(layers))
                frozen += nf4.frozen_tensors(layer, f"{place}.")
            yield frozen

    def _lay_out_blocks(self, reader: FileReader) -> Iterator[Block]:
        for index, frozen in enumerate(self._fill_layers()):
            frozen = [
                replace(entry, stored=self._unread.get(entry.value.data_ptr())) for entry in frozen
            ]
            assert sum(entry.stored is not None for entry in frozen) == len(self._unread)
            yield Block.lay_out(
                index, frozen, device=self.plan.device, reader=reader, tier=self.plan.tier
            )
            # Their addresses are given out again from here on.
            self._unread.clear()

    def _fill_ends(self, reader: FileReader) -> list[Future[None]]:
        inside = tuple(self.skeleton.layer_prefixes)
        for path, module in self.skeleton.model.named_modules():
            if not f"{path}.".startswith(inside):
                self._fill_module(module, f"{path}." if path else "", own=True)
        reads = [reader.start([item]) for item in self._unread_ends]
        self._unread_ends.clear()
        if self.writer is not None:
            for read in reads:
                read.result()
            num_layers = len(self.skeleton.layers)
            self.writer.write(num_layers, self._stored_ends(), num_layers)
        return reads

    def _fill(self, layer: nn.Module, prefix: str) -> None:
        for path, module in layer.named_modules():
            self._fill_module(module, f"{prefix}{path}." if path else prefix)

    def _fill_module(self, module: nn.Module, prefix: str, *, own: bool = False) -> None:
        """Give one module, without its children, its tensors."""
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            name = prefix + leaf
            if name in self.skeleton.tied:
                continue
            if isinstance(module, Linear4bit) and leaf == "weight":
                self._fill_linear(module, name, own=own)
            else:
                tensor = self._read_to_host(name, parameter.dtype, own=own)
                if not (own or self._defers):
                    nf4.refuse_non_finite(name, tensor, where=self.source.name)
                setattr(module, leaf, nn.Parameter(tensor, requires_grad=False))
        for leaf, buffer in list(module.named_buffers(recurse=False)):
            if leaf not in module._non_persistent_buffers_set:
                setattr(module, leaf, self._read_to_host(prefix + leaf, buffer.dtype, own=own))

    def _fill_linear(self, linear: Linear4bit, name: str, *, own: bool) -> None:
        if not self.plan.prequantised:
            stored = self.match.stored_name[name]
            weight = self.source.read(stored, self.plan.device, self.plan.dtype)
            nf4.refuse_non_finite(name, weight, where=self.source.name)
            nf4.quantise(linear, weight, self.tables)
            return
        stats = {
            # What travels may come later; tables and settings are looked at here.
            key: self._read_to_host(f"{name}.{key}", own=own, now=not key.endswith("absmax"))
            for key in nf4.stat_keys(name, self.headers)
        }
        try:
            nf4.adopt(linear, self._read_to_host(name, own=own), stats, self.tables)
        except ValueError as error:
            raise PorosModelError(
                str(error),
                where=f"tensor {name} in {self.source.name}",
                remediation="download the model again, or use its 16-bit original",
            ) from error

    def _read_to_host(
        self, name: str, dtype: torch.dtype | None = None, *, own: bool = False, now: bool = False
    ) -> Tensor:
        """A tensor on the host, or pages for one whose bytes come as its block is laid out.

        Args:
            name: The model's.
            dtype: None: as stored.
            own: Of the ends: in pages of its own, where it stays if the run has it on the host.
            now: The bytes are looked at before that.
        """
        stored = self.match.stored_name[name]
        header, part = self.headers[stored], self.source.part(stored)
        as_stored = dtype in (None, TORCH_DTYPES[header.dtype])
        if (
            part is None
            or not as_stored
            or now
            or not header.num_bytes
            or not (own or self._defers)
        ):
            tensor = self.source.read_to_host(stored, self.plan.device, dtype)
            return untouched(tensor.shape, tensor.dtype).copy_(tensor) if own else tensor
        tensor = untouched(header.shape, TORCH_DTYPES[header.dtype])
        if own:
            self._unread_ends.append((part, tensor))
        else:
            self._unread[tensor.data_ptr()] = part
        return tensor

    def _stored_ends(self) -> dict[str, Tensor]:
        """Everything outside the layers as a checkpoint stores it."""
        skeleton = self.skeleton
        stored: dict[str, Tensor] = {}
        for path in resident_paths(skeleton.model, skeleton.architecture):
            module = skeleton.model.get_submodule(path)
            stored |= nf4.stored_tensors(module, f"{path}.", without=skeleton.tied)
        return stored

    def _check_ends(self) -> None:
        """Of files that are read for the first time: later starts take them from the cache."""
        for name, tensor in self._stored_ends().items():
            if tensor.is_floating_point():
                nf4.refuse_non_finite(name, tensor, where=self.source.name)

    def _resident_bytes(self) -> int:
        """Size of the ends: tied tensors once, computed buffers and NF4 statistics among them."""
        model = self.skeleton.model
        sizes: dict[int, int] = {}
        for path in resident_paths(model, self.skeleton.architecture):
            for frozen in nf4.frozen_tensors(model.get_submodule(path)):
                tensor = frozen.value
                sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return sum(sizes.values())

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

    def _check_filled(self) -> None:
        """The last guard: nothing may train on a tensor that has no bytes."""
        model = self.skeleton.model
        empty = [n for n, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]
        if empty:
            raise PorosModelError(
                f"not filled: {short_list(empty)}",
                where=self.source.name,
                remediation="report it: the checkpoint was taken for complete and is not",
            )

    def _progress(self, phase: str, num_blocks: int) -> None:
        total = len(self.skeleton.layers)
        done = min(num_blocks * self.plan.layers_per_block, total)
        self.plan.emit(PhaseProgressed(phase=phase, done=done, total=total, unit="layers"))


def _under_the_models_names(source: ByteSource, skeleton: Skeleton) -> ByteSource:
    """Apply the family's renames: some versions of transformers store other names."""
    modules = {path for path, _ in skeleton.model.named_modules()}
    fitting = [
        (old, new)
        for old, new in skeleton.architecture.renames
        if old[:-1] not in modules and new[:-1] in modules
    ]
    names = source.names()
    stored = {name: name for name in names}
    for old, new in fitting:
        for name in names:
            own = new + name.removeprefix(old)
            # One that is there under both names stays, and is refused as one too many.
            if name.startswith(old) and own not in stored:
                stored[own] = stored.pop(name)
    return RenamedSource(source, stored) if fitting else source
