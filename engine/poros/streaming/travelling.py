"""Adapters that lie on the host: weights come with their block, gradients leave after its backward.

[Note: the gradient's way]
A resident gradient is assigned by a step's first micro-batch and added to by each later one. Here
the same two kernels run in a slot: the first micro-batch's gradient is copied into it, a later
one is added to the former sum, which was brought back meanwhile; then the sum goes home. Only the
norms stay, taken from the sum while it is in the slot. Autograd sees none of it: a layer's
function has one stand-in leaf (`anchor`) in place of its adapters, which makes its results need
gradients as they would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from poros.streaming.block import Block, FrozenTensor
from poros.streaming.return_lane import ReturnLane
from poros.streaming.state_ring import GradientRing, StateRing

Named = Sequence[tuple[str, nn.Parameter]]


class TravellingAdapters:
    """The adapters of all blocks.

    Args:
        groups: Each block's adapters by name, in the model's order; a block may have none. From
            now on they are CPU tensors, except while their block is bound.
        device: Where they compute.
        lane: What carries them.
        alone: Nothing but these adapters is trained.
    """

    def __init__(
        self, groups: Sequence[Named], *, device: torch.device, lane: ReturnLane, alone: bool
    ) -> None:
        """Move weights to the host; gradients begin as nothing."""
        self.alone = alone
        self._device = device
        self._lane = lane
        self._groups = groups
        self._places = {
            weight: (index, k)
            for index, group in enumerate(groups)
            for k, (_, weight) in enumerate(group)
        }
        self._weights = [
            Block.lay_out(
                index,
                [FrozenTensor(name, weight, "data") for name, weight in group],
                device=device,
                readable=True,
            )
            for index, group in enumerate(groups)
        ]
        self._sums = [
            Block.zeros(index, group, device=device) for index, group in enumerate(groups)
        ]
        self.weights = StateRing(self._weights, device=device, lane=lane)
        self.gradients = GradientRing(
            self._sums, device=device, lane=lane, leaving=self._take_norms
        )
        self._given: set[nn.Parameter] = set()
        self._norms: dict[nn.Parameter, Tensor] = {}
        self.anchor = torch.zeros((), device=device, requires_grad=True)

    @property
    def host_blocks(self) -> tuple[list[Block], list[Block]]:
        """The blocks of weights and those of gradients."""
        return self._weights, self._sums

    def __contains__(self, weight: object) -> bool:
        """Whether a parameter travels."""
        return weight in self._places

    def bind(self, index: int, *, direction: int, wrap: bool = False) -> None:
        """Point the block's adapters at their weights on the device."""
        self.weights.bind(index, direction=direction, wrap=wrap)

    def inputs(self, adapters: Sequence[nn.Parameter]) -> list[Tensor]:
        """What a layer's function has for its adapters: those that stay, and the anchor."""
        staying: list[Tensor] = [weight for weight in adapters if weight not in self]
        return staying if len(staying) == len(adapters) else [*staying, self.anchor]

    def take(self, gradients: Mapping[nn.Parameter, Tensor | None]) -> list[Tensor | None]:
        """Add a layer's gradients to its block's sums; what `inputs` get instead."""
        staying = [gradient for weight, gradient in gradients.items() if weight not in self]
        if len(staying) == len(gradients):
            return staying
        self._add({w: g for w, g in gradients.items() if w in self and g is not None})
        return [*staying, None]

    @torch.no_grad()
    def _add(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        for index in {self._places[weight][0] for weight in gradients}:  # one: a layer's block
            self.gradients.bind(index, direction=-1)
            self.gradients.changed()
        for weight, gradient in gradients.items():
            index, k = self._places[weight]
            total = self._sums[index].tensors[k]
            if weight in self._given:
                total.add_(gradient)
            else:
                total.copy_(gradient)
                self._given.add(weight)

    def finish(self) -> None:
        """Send the last block's sums home: the step's backwards are done."""
        self.gradients.leave()

    def norm(self, weight: nn.Parameter) -> Tensor | None:
        """The norm of a weight's summed gradient, () on the device; None: it has no gradient."""
        return self._norms.get(weight)

    def gradient(self, weight: nn.Parameter) -> Tensor | None:
        """A weight's summed gradient on the host, whole once the lane has settled."""
        index, k = self._places[weight]
        return self._sums[index].home[k] if weight in self._given else None

    def bind_for_step(self, index: int) -> None:
        """Bring a block's weights and summed gradients to the device, as `grad` of the weights."""
        self.weights.bind(index, direction=1, wrap=True)
        self.gradients.bind(index, direction=1)
        for k, (_, weight) in enumerate(self._groups[index]):
            weight.grad = self._sums[index].tensors[k] if weight in self._given else None

    def stepped(self, index: int) -> None:
        """Send the bound block's weights home and let go of its gradients: they are used up."""
        self.weights.store()
        for _, weight in self._groups[index]:
            weight.grad = None
            self._given.discard(weight)

    def break_off(self, index: int) -> None:
        """Let the block be what the host has of it: its step was not made."""
        for _, weight in self._groups[index]:
            weight.grad = None
        self.weights.forget()
        self.gradients.forget()

    @torch.no_grad()
    def adopt(self, gradients: Mapping[nn.Parameter, Tensor | None]) -> None:
        """Take over what weights had as their gradients; the norms were taken by who had them."""
        for weight, gradient in gradients.items():
            if gradient is not None:
                index, k = self._places[weight]
                self._sums[index].home[k].copy_(gradient)
                self._given.add(weight)
                self.gradients.adopt(index)

    def clear(self) -> None:
        """Forget the step's gradients."""
        self._given.clear()
        self._norms.clear()
        self.gradients.clear()

    def give_back(self) -> None:
        """Make the adapters resident again: tensors of their own on the device."""
        self.weights.forget()
        self._lane.settle()
        for block in self._weights:
            block.point_at(block.host.to(self._device, copy=True))

    def _take_norms(self, index: int) -> None:
        given = [(k, w) for k, (_, w) in enumerate(self._groups[index]) if w in self._given]
        sums = [self._sums[index].tensors[k] for k, _ in given]
        # What `torch.nn.utils.get_total_norm` calls for all of them: one norm a tensor.
        norms = torch._foreach_norm(sums, 2.0)
        self._norms.update(zip((weight for _, weight in given), norms, strict=True))
