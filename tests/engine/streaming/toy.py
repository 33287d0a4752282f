"""A small model of unlike layers that take and give several tensors, for streaming tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poros.streaming.attach import Attachment, SideRules, attach
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import Boundaries

CPU = torch.device("cpu")
WIDTH = 8
DECLARED = SideRules(per_layer_input=True)


class ToyCache:
    """A KV cache as a layer sees it: writing to it twice is a fault."""

    def __init__(self) -> None:
        self.written: list[int] = []


class ToyLayer(nn.Module):
    """Frozen weights, an adapter with dropout, a side tensor in and out; odd ones have a norm."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3, requires_grad=False)
        self.bias = nn.Parameter(torch.randn(WIDTH) / 9, requires_grad=False)
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False) if index % 2 else nn.Identity()
        self.register_buffer("scale", torch.rand(3))
        self.adapter = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.3)

    def forward(
        self, hidden: Tensor, *, side: Tensor, memory: object = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if isinstance(memory, ToyCache):
            memory.written.append(self.index)
            hidden = hidden + len(memory.written)
        inner = self.norm(hidden) @ self.weight + self.bias * side
        inner = inner + self.adapter(self.dropout(hidden)) * self.scale.sum()
        return hidden + torch.tanh(inner), {"side": side * inner.sigmoid()}


class ToyModel(nn.Module):
    """Layers in a row; the side tensor runs through all of them."""

    def __init__(self, num_layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Parameter(torch.randn(WIDTH))
        self.layers = nn.ModuleList(ToyLayer(i) for i in range(num_layers))

    def forward(self, hidden: Tensor, memory: object = None) -> Tensor:
        side = self.first.expand_as(hidden)
        for layer in self.layers:
            hidden, extra = layer(hidden, side=side, memory=memory)
            side = extra["side"]
        return (hidden * side).sum()


def frozen_tensors(layer: nn.Module, prefix: str) -> list[FrozenTensor]:
    frozen = [
        FrozenTensor(f"{prefix}.{name}", parameter, "data")
        for name, parameter in layer.named_parameters()
        if not parameter.requires_grad
    ]
    return [*frozen, FrozenTensor(f"{prefix}.scale", layer, "scale")]


def stream(
    model: ToyModel,
    *,
    num_slots: int = 2,
    layers_per_block: int = 1,
    preserve_rng: bool = True,
    prefetch: bool = True,
    poison: bool = False,
    rules: SideRules = DECLARED,
    resident: tuple[int, ...] = (),
    boundaries: bool = False,
) -> tuple[BlockManager, Attachment]:
    layers = list(model.layers)
    groups = [layers[i : i + layers_per_block] for i in range(0, len(layers), layers_per_block)]
    blocks = [
        Block.lay_out(
            i, [f for k, layer in enumerate(g) for f in frozen_tensors(layer, str(k))], device=CPU
        )
        for i, g in enumerate(groups)
    ]
    manager = BlockManager(
        blocks, device=CPU, num_slots=num_slots, prefetch=prefetch, poison=poison,
        resident=resident,
    )  # fmt: skip
    attachment = attach(
        layers,
        manager,
        device=CPU,
        layers_per_block=layers_per_block,
        drop=lambda value: isinstance(value, ToyCache),
        preserve_rng=preserve_rng,
        rules=rules,
        model=model,
        boundaries=Boundaries(manager, device=CPU) if boundaries else None,
    )
    return manager, attachment


def gradients(model: ToyModel, *, steps: int = 2, memory: object = None) -> list[Tensor]:
    """Loss and gradients of each step, drawn with the same dropout every time it is called."""
    torch.manual_seed(3)
    items: list[Tensor] = []
    for step in range(steps):
        hidden = torch.linspace(-1, 1 + step, 4 * WIDTH).view(4, WIDTH)
        loss = model(hidden, memory=memory)
        loss.backward()
        items.append(loss.detach())
        for parameter in model.parameters():
            if parameter.requires_grad:
                assert parameter.grad is not None
                items.append(parameter.grad.clone())
                parameter.grad = None
    return items
