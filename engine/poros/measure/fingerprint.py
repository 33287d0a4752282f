"""Equality of bytes: digests of tensors, one root per step, and where two runs first differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

_SIGNED_BY_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def raw_bytes(tensor: Tensor) -> Tensor:
    """The tensor's values as a flat uint8 tensor on the host, in logical order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if dtype, shape and raw bytes are equal.

    Unlike ``torch.equal`` this tells -0.0 from 0.0 and float32 from bfloat16, and finds a NaN
    equal to itself.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(raw_bytes(a), raw_bytes(b))


def digest(tensor: Tensor) -> str:
    """Sha256 over dtype, shape and raw bytes."""
    head = f"{tensor.dtype}|{tuple(tensor.shape)}|".encode()
    found = hashlib.sha256(head)
    found.update(raw_bytes(tensor).numpy().data)
    return found.hexdigest()


def merkle_root(digests: Mapping[str, str]) -> str:
    """One hash for a step: a binary tree over its (name, digest) pairs, sorted by name."""
    level = [
        hashlib.sha256(f"{name}\0{digests[name]}".encode()).digest() for name in sorted(digests)
    ]
    if not level:
        return hashlib.sha256(b"").hexdigest()
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [hashlib.sha256(b"".join(pair)).digest() for pair in pairs]
    return level[0].hex()


@dataclass(frozen=True)
class Difference:
    """How two tensors of one name differ."""

    name: str
    reason: str
    num_different: int = 0
    max_abs: float | None = None
    max_ulp: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def difference(name: str, a: Tensor, b: Tensor) -> Difference | None:
    """What differs between two tensors, or None if all bytes are equal."""
    if a.dtype != b.dtype:
        return Difference(name, f"dtype {a.dtype} against {b.dtype}")
    if a.shape != b.shape:
        return Difference(name, f"shape {tuple(a.shape)} against {tuple(b.shape)}")
    if same_bits(a, b):
        return None
    a, b = a.detach().cpu(), b.detach().cpu()
    ulp = _ordered(a) - _ordered(b)
    apart = (a.double() - b.double()).abs()
    finite = apart[torch.isfinite(apart)]
    max_abs = float(finite.max()) if finite.numel() else None
    return Difference(name, "bytes", int((ulp != 0).sum()), max_abs, int(ulp.abs().max()))


def first_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Difference | None:
    """The first difference in a's order; a name that only one side has is one as well."""
    for name, tensor in a.items():
        if name not in b:
            return Difference(name, "missing on the right")
        found = difference(name, tensor, b[name])
        if found is not None:
            return found
    extra = [name for name in b if name not in a]
    return Difference(extra[0], "missing on the left") if extra else None


def _ordered(tensor: Tensor) -> Tensor:
    """Integers in the order of the floats, so that neighbours differ by one (and -0.0 from 0.0)."""
    if not tensor.is_floating_point():
        return tensor.to(torch.int64)
    signed = tensor.contiguous().view(_SIGNED_BY_SIZE[tensor.element_size()]).to(torch.int64)
    lowest = torch.iinfo(_SIGNED_BY_SIZE[tensor.element_size()]).min
    return torch.where(signed < 0, lowest - signed - 1, signed)
