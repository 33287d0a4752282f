"""What a layer with adapters reads beside tensors: changed, its recompute is another function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn


def habits_of(modules: Sequence[nn.Module]) -> list[Any]:
    """Active adapters and their scaling, dropouts and the choice of attention, to be compared.

    Args:
        modules: Of a layer.
    """
    found: list[Any] = []
    for module in modules:
        if isinstance(module, BaseTunerLayer):
            scaling = getattr(module, "scaling", None)
            found.append(dict(scaling) if isinstance(scaling, dict) else scaling)
            found.append((list(module.active_adapters), module.disable_adapters))
            found.append(list(module.merged_adapters))
        elif isinstance(module, nn.modules.dropout._DropoutNd):
            found.append(module.p)
        config = module.__dict__.get("config")
        if config is not None:
            found.append(getattr(config, "_attn_implementation", None))
    return found
