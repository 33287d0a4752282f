"""What surrounds a layer's forward and must surround its recompute: context and random state.

Backward runs later, on CUDA in another thread, where autocast, default dtype and the choice of
attention kernels are not those of the forward. A recompute under other settings is another
function: the loss stays equal, and gradients are silently wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RandomState:
    """The states that a layer's dropout draws from: the CPU's and the device's generator."""

    cpu: Tensor
    device: Tensor | None

    @classmethod
    def capture(cls, device: torch.device) -> RandomState:
        """Take the states as they are; on CUDA seed and offset, without a host sync."""
        return cls(torch.get_rng_state(), _generator(device).get_state() if _has(device) else None)

    def restore(self, device: torch.device) -> None:
        """Put the states back."""
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            _generator(device).set_state(self.device)


@contextlib.contextmanager
def random_state_restored(state: RandomState | None, device: torch.device) -> Iterator[None]:
    """Draw again what was drawn from `state` on, then go on as if nothing had been drawn."""
    if state is None:
        yield
        return
    now = RandomState.capture(device)
    state.restore(device)
    try:
        yield
    finally:
        now.restore(device)


@dataclass(frozen=True)
class _Autocast:
    device_type: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def capture(cls, device_type: str) -> _Autocast:
        enabled = torch.is_autocast_enabled(device_type)
        return cls(device_type, enabled, torch.get_autocast_dtype(device_type))


@dataclass(frozen=True)
class Ambient:
    """Autocast, training flags, attention kernels, default dtype and stream around a layer."""

    autocasts: tuple[_Autocast, ...]
    autocast_cache: bool
    training: tuple[bool, ...]
    sdpa: tuple[bool, bool, bool, bool]
    default_dtype: torch.dtype
    stream: torch.cuda.Stream | None

    @classmethod
    def capture(cls, layer: nn.Module, device: torch.device) -> Ambient:
        """Take the surroundings of `layer` as they are."""
        return cls(
            autocasts=tuple(_Autocast.capture(kind) for kind in sorted({"cpu", device.type})),
            autocast_cache=torch.is_autocast_cache_enabled(),
            training=tuple(module.training for module in layer.modules()),
            sdpa=_sdpa_flags(),
            default_dtype=torch.get_default_dtype(),
            stream=torch.cuda.current_stream(device) if _has(device) else None,
        )

    @contextlib.contextmanager
    def entered(self, layer: nn.Module) -> Iterator[None]:
        """Be in these surroundings again."""
        with contextlib.ExitStack() as stack:
            if self.stream is not None:
                stack.enter_context(torch.cuda.stream(self.stream))
            for cast in self.autocasts:
                stack.enter_context(
                    torch.autocast(
                        cast.device_type,
                        enabled=cast.enabled,
                        dtype=cast.dtype,
                        cache_enabled=self.autocast_cache,
                    )
                )
            stack.enter_context(_training_flags(layer, self.training))
            stack.enter_context(_sdpa(self.sdpa))
            stack.enter_context(_default_dtype(self.default_dtype))
            yield


def _has(device: torch.device) -> bool:
    return device.type == "cuda"


def _generator(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


@contextlib.contextmanager
def _training_flags(layer: nn.Module, flags: tuple[bool, ...]) -> Iterator[None]:
    modules = list(layer.modules())
    now = [module.training for module in modules]
    if now == list(flags):
        yield
        return
    for module, flag in zip(modules, flags, strict=True):
        module.training = flag
    try:
        yield
    finally:
        for module, flag in zip(modules, now, strict=True):
            module.training = flag


def _sdpa_flags() -> tuple[bool, bool, bool, bool]:
    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(),
        backends.math_sdp_enabled(),
        backends.cudnn_sdp_enabled(),
    )


def _set_sdpa_flags(flags: tuple[bool, bool, bool, bool]) -> None:
    flash, mem_efficient, math, cudnn = flags
    torch.backends.cuda.enable_flash_sdp(flash)
    torch.backends.cuda.enable_mem_efficient_sdp(mem_efficient)
    torch.backends.cuda.enable_math_sdp(math)
    torch.backends.cuda.enable_cudnn_sdp(cudnn)


@contextlib.contextmanager
def _sdpa(flags: tuple[bool, bool, bool, bool]) -> Iterator[None]:
    now = _sdpa_flags()
    if now == flags:
        yield
        return
    _set_sdpa_flags(flags)
    try:
        yield
    finally:
        _set_sdpa_flags(now)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    now = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(now)
