"""What lies in memory at the peak of a training step, group by group, with bytes.

On CUDA a step is made while torch records its allocator; the record is replayed to the peak
(`memory_replay`) and every allocation is named: known tensors by their address, the others by the
Python code that made them (`memory_names`). The groups' sum is the allocator's own peak. Elsewhere
only what lies there for the whole run is listed; activations are not seen.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from poros import atomic
from poros.errors import PorosOOMError
from poros.events import Event, MemoryMapped
from poros.loading.base_model import BaseModel
from poros.memory_sizes import CUBLAS_WORKSPACE_BYTES
from poros.streaming.attach import Attachment
from poros.streaming.block_manager import BlockManager
from poros.training.host_adamw import HostAdamW
from poros.training.host_ends import HostEnds
from poros.training.memory_names import NOT_NAMED, name_of
from poros.training.memory_replay import BEFORE, Allocation, Notes, Peak, find_peak
from poros.training.optimizer import AdapterAdamW, Params

FORMAT = 1

AUTOGRAD_ALONE = "backward outside the layers"

Named = Iterable[tuple[str, Tensor]]


@dataclass(kw_only=True)
class Group:
    """Allocations of one name.

    Attributes:
        name: What it is.
        num_bytes: Together.
        count: How many.
        largest_bytes: The largest of them.
        places: The code that made them, by bytes; empty for tensors known by address.
    """

    name: str
    num_bytes: int = 0
    count: int = 0
    largest_bytes: int = 0
    places: dict[str, int] = field(default_factory=dict)

    def add(self, num_bytes: int, place: str) -> None:
        """Count one allocation."""
        self.num_bytes += num_bytes
        self.count += 1
        self.largest_bytes = max(self.largest_bytes, num_bytes)
        if place:
            self.places[place] = self.places.get(place, 0) + num_bytes


def group_peak(
    peak: Peak, trace: Sequence[Mapping[str, Any]], notes: Notes
) -> tuple[list[Group], list[Group]]:
    """What was in use at the peak, and what was freed but not yet of use again; largest first."""
    return (
        _groups(peak.allocations, trace, notes),
        _groups(peak.awaiting, trace, notes),
    )


def _groups(
    allocations: Sequence[Allocation], trace: Sequence[Mapping[str, Any]], notes: Notes
) -> list[Group]:
    groups: dict[str, Group] = {}
    names = notes.names(allocations, trace)
    for allocation, noted in zip(allocations, names, strict=True):
        name, place = (noted, "") if noted else name_of(allocation.frames)
        if name == NOT_NAMED:
            # Only autograd's own thread makes anything without a Python frame.
            name = _unseen(allocation) if allocation.order == BEFORE else AUTOGRAD_ALONE
        groups.setdefault(name, Group(name=name)).add(allocation.num_bytes, place)
    return sorted(groups.values(), key=lambda group: -group.num_bytes)


def _unseen(allocation: Allocation) -> str:
    """What was made before the step: cuBLAS's workspace is the one that has the setting's size."""
    is_workspace = allocation.num_bytes == CUBLAS_WORKSPACE_BYTES
    return "cuBLAS workspace" if is_workspace else f"{NOT_NAMED}, from before the step"


@dataclass(frozen=True, kw_only=True)
class MappedParts:
    """The parts of a run whose tensors have names.

    Attributes:
        model: With adapters.
        layers: Its decoder layers.
        params: What is trained.
        optimizer: Over those.
        manager: The ring.
        device: Where it computes.
        host_bytes: Tells what lies on the host now, by name, beside the optimizer's part: a plan
            that was made smaller has more there.
    """

    model: nn.Module
    layers: Sequence[nn.Module]
    params: Params
    optimizer: AdapterAdamW
    manager: BlockManager
    device: torch.device
    host_bytes: Callable[[], Mapping[str, int]]

    def known(self) -> Named:
        """Tensors that lie on the device between steps, by group; slots before what is in them."""
        yield from (("slots of the ring", buffer) for buffer in self.manager.buffers)
        yield from (("resident blocks", place) for place in self.manager.place_buffers)
        if isinstance(self.optimizer, HostAdamW) and self.optimizer.travelling is not None:
            travelling = self.optimizer.travelling
            yield from (("slots of adapters", b) for b in travelling.weights.buffers)
            yield from (("slots of gradients", b) for b in travelling.gradients.buffers)
        for weight, state in self.optimizer.state.items():
            yield from (("moments", v) for v in state.values() if isinstance(v, Tensor))
            if weight.grad is not None:
                yield "gradients", weight.grad
        yield from (("adapters", weight) for _, weight in self.params)
        yield from model_tensors(self.model)

    def host_addresses(self) -> Iterator[int]:
        """Where the buffers of the optimizer's part on the host begin."""
        if isinstance(self.optimizer, HostAdamW):
            blocks = list(self.optimizer.moments)
            if self.optimizer.travelling is not None:
                weights, sums = self.optimizer.travelling.host_blocks
                blocks += [*weights, *sums]
            yield from (block.host.untyped_storage().data_ptr() for block in blocks)

    def on_host(self) -> dict[str, int]:
        """Bytes on the host by name."""
        held = self.optimizer.holdings(self.params)
        found = dict(self.host_bytes()) | {group.name: group.host_bytes for group in held}
        return {name: num_bytes for name, num_bytes in found.items() if num_bytes}


def mapped_parts(
    base: BaseModel,
    *,
    model: nn.Module,
    params: Params,
    optimizer: AdapterAdamW,
    manager: BlockManager,
    attachment: Attachment,
    ends: HostEnds,
    device: torch.device,
) -> MappedParts:
    """The parts of a run."""

    def host_bytes() -> dict[str, int]:
        boundaries = attachment.boundaries
        return {
            "blocks": sum(block.host_bytes for block in base.blocks),
            "head and embeddings": ends.num_bytes,
            "boundaries": boundaries.host_bytes if boundaries is not None else 0,
        }

    return MappedParts(
        model=model,
        layers=base.layers,
        params=params,
        optimizer=optimizer,
        manager=manager,
        device=device,
        host_bytes=host_bytes,
    )


def model_tensors(model: nn.Module) -> Named:
    """Code tables, head, embeddings and what else of a model stays on the device."""
    find_head = getattr(model, "get_output_embeddings", lambda: None)
    head = find_head()
    for module in model.modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is not None:
            nested = [state.state2.code] if state.nested else []
            yield from (("code tables", table) for table in [state.code, *nested])
        name = "other weights that stay"
        if module is head:
            name = "head"
        elif isinstance(module, nn.Embedding):
            tied = head is not None and module.weight is head.weight
            name = "head and embeddings" if tied else "embeddings"  # one tensor, noted once
        yield from ((name, weight) for weight in module.parameters(recurse=False))
        yield from (("buffers", buffer) for _, buffer in module.named_buffers(recurse=False))


class MemoryMapper:
    """Maps a run's steps; the file has the step with the highest peak so far.

    Args:
        parts: Of the run.
        path: The file.
        emit: Is told of each map.

    Attributes:
        peak_bytes: The highest peak so far; also what others of the process reached before, since
            a step begins the allocator's count anew.
        record: What was written last.
    """

    def __init__(self, parts: MappedParts, path: Path, emit: Callable[[Event], None]) -> None:
        """Nothing is recorded yet."""
        self._parts, self._path, self._emit = parts, path, emit
        self._mapped_bytes = 0
        self.peak_bytes = self.peak_reserved_bytes = 0
        self.record: dict[str, Any] = {}

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record what is done inside.

        Args:
            number: The optimizer step, from 1.
        """
        if self._parts.device.type != "cuda":
            yield
            if not self.record:
                self._write(self._without_trace(number))
            return
        recording = _Recording(self._parts)
        self._keep_peaks()
        torch.cuda.reset_peak_memory_stats(self._parts.device)
        recording.start()
        try:
            yield
        except (torch.OutOfMemoryError, PorosOOMError):
            self._write(recording.result(number, ran_out=True))
            raise
        else:
            peak_bytes = torch.cuda.max_memory_allocated(self._parts.device)
            if peak_bytes > self._mapped_bytes:
                self._mapped_bytes = peak_bytes
                self._write(recording.result(number))
        finally:
            recording.stop()
            self._keep_peaks()

    def _keep_peaks(self) -> None:
        device = self._parts.device
        self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated(device))
        self.peak_reserved_bytes = max(
            self.peak_reserved_bytes, torch.cuda.max_memory_reserved(device)
        )

    def _without_trace(self, number: int) -> dict[str, Any]:
        groups: dict[str, Group] = {}
        seen = set(self._parts.host_addresses())
        for name, tensor in self._parts.known():
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                groups.setdefault(name, Group(name=name)).add(storage.nbytes(), "")
        listed = sorted(groups.values(), key=lambda group: -group.num_bytes)
        return {
            "format": FORMAT,
            "device": self._parts.device.type,
            "step": number,
            "activations_seen": False,
            "groups": [asdict(group) for group in listed],
            "host": self._parts.on_host(),
        }

    def _write(self, record: dict[str, Any]) -> None:
        self.record = record
        atomic.write_file(self._path, json.dumps(record, indent=1) + "\n")
        self._emit(mapped_event(record, self._path))


def mapped_event(record: Mapping[str, Any], path: Path) -> MemoryMapped:
    """What a run tells of a map."""
    return MemoryMapped(
        step=record["step"],
        path=str(path),
        ran_out=record.get("asked_bytes", 0) > 0,
        activations_seen=record["activations_seen"],
        peak_bytes=record.get("peak_bytes", 0),
        reserved_bytes=record.get("reserved_bytes", 0),
        device_bytes={group["name"]: group["num_bytes"] for group in record["groups"]},
        host_bytes=record["host"],
    )


class _Recording:
    """One step's trace, and which tensors were where meanwhile."""

    def __init__(self, parts: MappedParts) -> None:
        self._parts, self._notes = parts, Notes()
        self._handles: list[Any] = []
        self._before: list[Mapping[str, Any]] = []
        self._count_before = 0
        device = parts.device
        self._index = torch.cuda.current_device() if device.index is None else device.index

    def start(self) -> None:
        device = self._parts.device
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", device=device, clear_history=True
        )
        self._before = [
            segment
            for segment in torch.cuda.memory._snapshot(device)["segments"]
            if segment["device"] == self._index
        ]
        self._count_before = self._count()
        self._note_known()
        self._hook()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        torch.cuda.memory._record_memory_history(None, device=self._parts.device)

    def result(self, number: int, *, ran_out: bool = False) -> dict[str, Any]:
        """The map's record; takes as long as a few steps."""
        self._note_known()
        device = self._parts.device
        torch_peak_bytes = torch.cuda.max_memory_allocated(device)
        trace = torch.cuda.memory._snapshot(device)["device_traces"][self._index]
        peak = find_peak(self._before, trace, ran_out=ran_out)
        groups, awaiting = group_peak(peak, trace, self._notes)
        maker = name_of(peak.last.frames) if peak.last is not None else (NOT_NAMED, "")
        return {
            "format": FORMAT,
            "device": torch.cuda.get_device_name(device),
            "step": number,
            "activations_seen": True,
            "peak_bytes": peak.num_bytes,
            "torch_peak_bytes": torch_peak_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "max_active_bytes": peak.max_active_bytes,
            "max_reserved_bytes": torch.cuda.max_memory_reserved(device),
            "asked_bytes": peak.asked_bytes,
            "num_guessed": peak.num_guessed,
            "peak_made_by": {"name": maker[0], "place": maker[1]},
            "groups": [asdict(group) for group in groups],
            "awaiting_free": [asdict(group) for group in awaiting],
            "host": self._parts.on_host(),
        }

    def _count(self) -> int:
        stats = torch.cuda.memory_stats_as_nested_dict(self._parts.device)
        count: int = stats["allocation"]["all"]["allocated"]
        return count

    def _note(self, name: str, tensor: object) -> None:
        if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.untyped_storage().nbytes():
            address = tensor.untyped_storage().data_ptr()
            self._notes.add(name, address, self._count() - self._count_before)

    def _note_known(self) -> None:
        # One look at the counter for all: nothing is allocated meanwhile.
        count = self._count() - self._count_before
        for name, tensor in self._parts.known():
            if tensor.is_cuda and tensor.untyped_storage().nbytes():
                self._notes.add(name, tensor.untyped_storage().data_ptr(), count)

    def _hook(self) -> None:
        """Note gradients as they are summed, and what goes from layer to layer."""
        for _, weight in self._parts.params:
            self._handles.append(
                weight.register_post_accumulate_grad_hook(
                    lambda weight: self._note("gradients", weight.grad)
                )
            )
        for layer in self._parts.layers:
            self._handles.append(layer.register_forward_hook(self._note_results))
        first = self._parts.layers[0]
        self._handles.append(
            first.register_forward_pre_hook(
                lambda _, args, kwargs: self._note_inputs(args, kwargs), with_kwargs=True
            )
        )

    def _note_results(self, layer: nn.Module, args: object, output: object) -> None:
        self._note("boundaries", output[0] if isinstance(output, tuple) else output)

    def _note_inputs(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._note("boundaries", args[0] if args else kwargs.get("hidden_states"))
