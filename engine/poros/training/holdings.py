"""What lies where: the bytes of a group of tensors on the host and on the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from poros.streaming.block import Block

NUM_SLOTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One group of tensors.

    Attributes:
        name: What it is: ``adapters``, ``gradients``, ``moments``.
        host_bytes: On the host, for the whole run.
        device_bytes: On the device, for the whole run.
        visiting_bytes: Of the device, while the group is in use: the slots that it passes through.
        pinned: Whether the device copies from and to the host's part without the host's help.
    """

    name: str
    host_bytes: int = 0
    device_bytes: int = 0
    visiting_bytes: int = 0
    pinned: bool = True


def on_device(name: str, tensors: Iterable[Tensor], times: int = 1) -> Holding:
    """A group that is resident; `times`: so many tensors of each of these shapes."""
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Holding(name=name, device_bytes=times * num_bytes)


def on_host(name: str, blocks: Sequence[Block], resident: Holding) -> Holding:
    """A group that lies on the host in blocks, but for a resident rest."""
    return Holding(
        name=name,
        host_bytes=sum(block.num_bytes for block in blocks),
        device_bytes=resident.device_bytes,
        visiting_bytes=NUM_SLOTS * max(block.num_bytes for block in blocks),
        pinned=all(block.registered for block in blocks),
    )
