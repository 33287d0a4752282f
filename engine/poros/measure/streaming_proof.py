"""Evidence that the streamed arm streamed: otherwise it would equal the resident one for free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bitsandbytes.nn.modules import Linear4bit
from torch import Tensor, nn

from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import Boundaries
from poros.streaming.visitor import Visitor
from poros.training.host_adamw import HostAdamW
from poros.training.optimizer import AdapterAdamW


def predicted_copies(num_blocks: int, num_slots: int, num_passes: int) -> int:
    """Copies that a ring needs for forward and backward of `num_passes` micro-batches.

    The first forward brings in every block. At each turn-around, at the end of a forward and of a
    backward, the blocks that the slots hold are the ones needed next, so they stay.

    Args:
        num_blocks: Those that travel; resident ones are copied once more than these.
        num_slots: Of the ring.
        num_passes: Micro-batches.
    """
    if num_blocks <= num_slots:
        return num_blocks
    return num_blocks + (2 * num_passes - 1) * (num_blocks - num_slots)


def base_tensors(layers: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Every frozen tensor inside the layers, those of quantisation states included."""
    for index, layer in enumerate(layers):
        for name, module in layer.named_modules():
            for leaf, parameter in module.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    yield f"{index}.{name}.{leaf}", parameter.data
            if isinstance(module, Linear4bit):
                weight: Any = module.weight
                state = weight.quant_state
                yield f"{index}.{name}.absmax", state.absmax
                if state.nested:
                    yield f"{index}.{name}.offset", state.offset
                    yield f"{index}.{name}.nested_absmax", state.state2.absmax


def state_proof(optimizer: AdapterAdamW, num_steps: int, num_passes: int) -> tuple[int, int]:
    """How often a block's moments, weights and sums of gradients went home, and should have.

    Moments and weights do once a step, sums once a micro-batch; blocks without adapters never.
    """
    if not isinstance(optimizer, HostAdamW):
        return 0, 0
    num_blocks = sum(bool(block.places) for block in optimizer.moments)
    found, predicted = optimizer.num_stores, num_blocks * num_steps
    travelling = optimizer.travelling
    if travelling is not None:
        found += travelling.weights.num_stores + travelling.gradients.num_stores
        predicted += num_blocks * (num_steps + num_passes)
    return found, predicted


def proof(
    layers: Sequence[nn.Module],
    manager: BlockManager,
    *,
    num_blocks: int,
    num_passes: int,
    ends: Mapping[str, Tensor] = MappingProxyType({}),
    visitor: Visitor | None = None,
    state: tuple[int, int] = (0, 0),
    boundaries: Boundaries | None = None,
) -> dict[str, Any]:
    """Whether the layers' base tensors are absent from the device, and the copies as predicted.

    So are `ends`, which are on the host for good, and the visitor's block, copied once a pass.
    Each layer's hidden states left once a pass and came back once.

    It empties ring and places: what still has elements afterwards was never streamed. Blocks that
    all have a slot are copied once and stay (``stays``): bits are compared, but no slot is used
    again.
    """
    num_resident = len(manager.resident)
    num_travelling = num_blocks - num_resident
    predicted = num_resident + predicted_copies(num_travelling, manager.num_slots, num_passes)
    manager.forget()
    tensors = dict(base_tensors(layers)) | dict(ends)
    num_visits = visitor.num_copies if visitor is not None else 0
    travels = (boundaries.num_stores, boundaries.num_fetches) if boundaries is not None else (0, 0)
    present = [name for name, tensor in tensors.items() if tensor.numel()]
    reason = ""
    if not tensors:
        reason = "no base tensors found"
    elif present:
        reason = f"{len(present)} base tensors stayed on the device, {present[0]} first"
    elif manager.num_copies != predicted:
        reason = f"{manager.num_copies} copies, {predicted} predicted"
    elif visitor is not None and num_visits != num_passes:
        reason = f"{num_visits} visits of the head, {num_passes} predicted"
    elif boundaries is not None and travels != (num_passes * len(layers),) * 2:
        reason = f"hidden states left and came back {travels}, not {len(layers)} times a pass"
    elif state[0] != state[1]:
        reason = f"trained state went home {state[0]} times, {state[1]} predicted"
    return {
        "proved": not reason,
        "reason": reason,
        "stays": num_travelling <= manager.num_slots,
        "num_base_tensors": len(tensors),
        "num_present": len(present),
        "num_copies": manager.num_copies,
        "num_predicted_copies": predicted,
        "copied_bytes": manager.copied_bytes,
        "slot_bytes": manager.slot_bytes,
        "num_slots": manager.num_slots,
        "num_resident": num_resident,
        "num_visits": num_visits,
        "num_state_stores": state[0],
        "num_boundary_stores": travels[0],
    }
