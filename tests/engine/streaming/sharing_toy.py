"""A toy whose layers share tensors through a mapping, in ways in which the order of sums shows."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from tests.engine.streaming.toy import WIDTH, ToyModel

Shared = MutableMapping[str, Any]


class SharingLayer(nn.Module):
    """Layers 1 and 4 write a pair, layer 2 its own output; all read what there is, twice."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3, requires_grad=False)
        self.register_buffer("scale", torch.rand(3))
        self.adapter = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.3)

    def forward(self, hidden: Tensor, shared: Shared, *, memory: object = None) -> Tensor:
        del memory
        inner = self.adapter(self.dropout(hidden))
        for name in ("keys", "stream"):
            for tensor in shared.get(name, ()):
                inner = inner + tensor @ self.weight + torch.tanh(tensor * self.scale[0])
        if self.index in (1, 4):
            keys = hidden @ self.weight
            shared["keys"] = (keys, keys, keys.sigmoid())
            inner = inner + keys * self.scale[1] + keys.cos()
        hidden = hidden + torch.tanh(inner)
        if self.index == 2:
            shared["stream"] = [hidden]
            shared["note"] = f"written by {self.index}"
        if self.index == 5:
            del shared["stream"]
        return hidden


class SharingModel(ToyModel):
    """Makes a mapping of the wanted type for each forward; its last one stays as `shared`."""

    def __init__(self, make: Callable[[], Shared] = UserDict) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.make = make
        self.layers = nn.ModuleList(SharingLayer(i) for i in range(6))

    def forward(self, hidden: Tensor, memory: object = None) -> Tensor:
        shared = self.shared = self.make()
        hidden = hidden * self.first
        for layer in self.layers:
            hidden = layer(hidden, shared, memory=memory)
        return (hidden * shared["keys"][2]).sum()
