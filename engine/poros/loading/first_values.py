"""What a model's own initialiser puts into its vectors and scalars, asked module by module."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class _Place:
    module: nn.Module
    leaf: str
    owner: PreTrainedModel
    """The nearest model around the module, whose initialiser is responsible for it."""


class FirstValues:
    """The first values of a model's small tensors, though the model itself is on the meta device.

    Args:
        model: Its weights are never read.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Note where the vectors and scalars hang."""
        self._places = dict(_places(model))

    def of(self, name: str, seed: int) -> Tensor:
        """The tensor's first values on the host, in float32; zeros where the model has no opinion.

        Args:
            name: Of a parameter or buffer of at most one dimension.
            seed: For values that the initialiser draws.
        """
        place = self._places[name]
        module = copy.copy(place.module)
        # Vectors on the host in a copy of the module, so that nothing of the model is written.
        module._parameters = {
            leaf: None if tensor is None else nn.Parameter(_blank(tensor), requires_grad=False)
            for leaf, tensor in place.module._parameters.items()
        }
        module._buffers = {
            leaf: None if tensor is None else _blank(tensor)
            for leaf, tensor in place.module._buffers.items()
        }
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            initialise: Any = place.owner._init_weights
            initialise(module)
        values: Tensor = getattr(module, place.leaf)
        return values.detach().float().nan_to_num(nan=0.0)


def _blank(tensor: Tensor) -> Tensor:
    if tensor.dim() > 1 or not tensor.is_floating_point():
        return tensor.detach()
    return torch.full(tensor.shape, torch.nan, dtype=torch.float32)


def _places(model: PreTrainedModel) -> list[tuple[str, _Place]]:
    found: list[tuple[str, _Place]] = []

    def walk(module: nn.Module, path: str, owner: PreTrainedModel) -> None:
        owner = module if isinstance(module, PreTrainedModel) else owner
        for leaf, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.dim() <= 1:
                found.append((path + leaf, _Place(module, leaf, owner)))
        for name, child in module.named_children():
            walk(child, f"{path}{name}.", owner)

    walk(model, "", model)
    return found
