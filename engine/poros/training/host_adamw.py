"""AdamW whose moments can lie on the host, and with them the adapters; they go there at any time.

[Note: the same kernels, block by block]
A step of stock foreach AdamW is one list of tensors through elementwise kernels, so a tensor's
bits don't depend on what else is in the list. Each block is a parameter group of its own; its
moments (and weights and gradients) are brought to a slot while the block before steps, stock's
`clip_grads_with_norm_` and `step` run on that group alone, and the slot is written back while the
next one steps. The norm is taken before: one a tensor, then one over all in the resident order.

A block whose step broke off is brought in again: what its slot had of it is forgotten.

[Note: nothing on the host is read too early]
`state` and the weights name host memory between steps. Copies wait for the write-back on the
device; a reader on the host calls `settle` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from poros.memory_plan import MemoryPlan
from poros.streaming.block import Block
from poros.streaming.return_lane import make_return_lane
from poros.streaming.state_ring import StateRing
from poros.streaming.travelling import TravellingAdapters
from poros.training.holdings import Holding, on_host
from poros.training.optimizer import MOMENTS, AdapterAdamW, Params
from poros.training.rollback import whole_or_not_at_all


class HostAdamW(AdapterAdamW):
    """AdamW over blocks of weights, and over others that stay on the device.

    It begins with all its state on the device.

    Args:
        groups: Each block's weights by name; a block may have none.
        others: Weights of no block, or of several; their state stays on the device.
        weight_decay: As stock's.
        device: Where the steps are computed.

    Attributes:
        moments: A block each on the host; none while they are on the device.
        travelling: The adapters, once they are on the host.
    """

    def __init__(
        self, groups: Sequence[Params], others: Params, *, weight_decay: float, device: torch.device
    ) -> None:
        """Leave the weights where they are."""
        weights = [[weight for _, weight in group] for group in (*groups, others)]
        named = [{"params": group} for group in weights if group]
        super().__init__(named, weight_decay=weight_decay, foreach=True)
        self._others = others
        self._device = device
        self._named_groups = groups
        self._groups = weights[:-1]
        self._places = {
            weight: (index, k)
            for index, group in enumerate(self._groups)
            for k, weight in enumerate(group)
        }
        self.lane = make_return_lane(device)
        self.moments: list[Block] = []
        self.travelling: TravellingAdapters | None = None
        self.num_stores = 0
        self._moved_bytes = 0
        self._leaving: dict[nn.Parameter, Tensor | None] = {}

    def send_moments(self) -> None:
        """Have the moments on the host from now on; those of weights that never stepped are zeros.

        Between two steps, or where a step broke off.
        """
        if self.moments:
            return
        self.moments = [
            Block.zeros(
                index,
                [(f"{kind}.{name}", weight) for name, weight in group for kind in MOMENTS],
                device=self._device,
            )
            for index, group in enumerate(self._named_groups)
        ]
        for weight in self._places:
            if weight in self.state:
                self.restore(weight, self.state[weight])

    def send_adapters(self) -> None:
        """Have weights and gradients, those that a step has summed too, and moments on the host."""
        if self.travelling is not None:
            return
        self.send_moments()
        # Kept here too: the device may have no room for the slots, and this is called again.
        gradients = self._leaving = self._leaving or {w: w.grad for w in self._places}
        for weight in gradients:
            weight.grad = None  # it may not lie elsewhere than its weight
        self.travelling = TravellingAdapters(
            self._named_groups, device=self._device, lane=self.lane, alone=not self._others
        )
        self.travelling.adopt(gradients)
        self._leaving = {}

    @property
    def moved_bytes(self) -> int:
        """Bytes that went over the link for moments, weights and gradients, both ways."""
        rings: list[StateRing] = []
        if self.travelling is not None:
            rings = [self.travelling.weights, self.travelling.gradients]
        return self._moved_bytes + sum(ring.copied_bytes + ring.stored_bytes for ring in rings)

    def take_copy_wait_s(self) -> float:
        """Of moments, weights and gradients alike: they have one lane."""
        return self.lane.take_wait_s()

    def gradient(self, weight: nn.Parameter) -> Tensor | None:
        """On the host for a weight that travels: `settle` first."""
        if self.travelling is not None and weight in self.travelling:
            return self.travelling.gradient(weight)
        return weight.grad

    def total_norm(self, params: Params) -> Tensor:
        """One norm a tensor, taken as the blocks passed, then one over them in `params`' order."""
        if self.travelling is None:
            return super().total_norm(params)
        self.travelling.finish()
        # Stock sorts by type first; its order is ours while there is one.
        assert len({weight.dtype for _, weight in params}) == 1
        found = (self._norm(weight) for _, weight in params)
        norms = [norm for norm in found if norm is not None]
        total: Tensor = torch.linalg.vector_norm(torch.stack(norms), 2.0)
        return total

    @torch.no_grad()
    def _norm(self, weight: nn.Parameter) -> Tensor | None:
        if self.travelling is not None and weight in self.travelling:
            return self.travelling.norm(weight)
        if weight.grad is None:
            return None
        norm: Tensor = torch._foreach_norm([weight.grad], 2.0)[0]
        return norm

    def clip_and_step(self, params: Params, max_grad_norm: float, total_norm: Tensor) -> None:
        """Block by block: bring in, clip, step, write back; then the weights that stay."""
        if not self.moments:
            super().clip_and_step(params, max_grad_norm, total_norm)
            return
        of_all = self.param_groups
        groups = iter(of_all)
        # Its slots are there for the step only: the loss needs the room.
        ring = StateRing(self.moments, device=self._device, lane=self.lane)
        try:
            for index, weights in enumerate(self._groups):
                if weights:
                    self.param_groups = [next(groups)]
                    if any(self.gradient(weight) is not None for weight in weights):
                        self._step_block(ring, index, max_grad_norm, total_norm)
            self.param_groups = of_all
            super().clip_and_step(self._others, max_grad_norm, total_norm)
        finally:
            self.param_groups = of_all
            ring.forget()
            self.num_stores += ring.num_stores
            self._moved_bytes += ring.copied_bytes + ring.stored_bytes

    def _step_block(
        self, ring: StateRing, index: int, max_grad_norm: float, total_norm: Tensor
    ) -> None:
        weights, changing = self._groups[index], list[Tensor]()
        ring.bind(index)
        try:
            if self.travelling is not None:
                self.travelling.bind_for_step(index)
            else:
                changing += [weight.detach() for weight in weights]
                changing += [weight.grad for weight in weights if weight.grad is not None]
            with whole_or_not_at_all(self, weights, ()):
                self._point_state(index, self.moments[index].tensors)
                self._step_together(weights, changing, max_grad_norm, total_norm)
        except BaseException:
            if self.travelling is not None:
                self.travelling.break_off(index)
            raise
        finally:
            self._point_state(index, self.moments[index].home)
        ring.store()
        if self.travelling is not None:
            self.travelling.stepped(index)

    def _point_state(self, index: int, moments: Sequence[Tensor]) -> None:
        """Let the block's state be these: of each weight that ever had a gradient, as in stock."""
        for k, weight in enumerate(self._groups[index]):
            if weight.grad is not None and weight not in self.state:
                # On the CPU, as stock has it: a count on the device would be read at each step.
                self.state[weight] = {"step": torch.tensor(0.0, dtype=torch.float32)}
            if weight in self.state:
                self.state[weight] |= zip(MOMENTS, moments[2 * k : 2 * k + 2], strict=True)

    def restore(self, weight: nn.Parameter, state: Mapping[str, Tensor]) -> None:
        """Into the host's buffers."""
        if not self.moments or weight not in self._places:
            super().restore(weight, state)
            return
        self.settle()
        index, k = self._places[weight]
        home = self.moments[index].home[2 * k : 2 * k + 2]
        for tensor, kind in zip(home, MOMENTS, strict=True):
            tensor.copy_(state[kind])
        self.state[weight] = {"step": state["step"], **dict(zip(MOMENTS, home, strict=True))}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, wherever they are."""
        super().zero_grad(set_to_none=set_to_none)
        if self.travelling is not None:
            self.travelling.clear()

    def settle(self) -> None:
        """Wait for what is on its way to the host."""
        self.lane.settle()

    def holdings(self, params: Params) -> list[Holding]:
        """As stock's, with the blocks' part on the host."""
        adapters, gradients, moments = super().holdings(params)
        if not self.moments:
            return [adapters, gradients, moments]
        rest, rest_gradients, rest_moments = super().holdings(self._others)
        if self.travelling is not None:
            weights, sums = self.travelling.host_blocks
            adapters = on_host("adapters", weights, rest)
            gradients = on_host("gradients", sums, rest_gradients)
        return [adapters, gradients, on_host("moments", self.moments, rest_moments)]


def by_block(
    params: Params, layers: Sequence[nn.Module], layers_per_block: int
) -> tuple[list[Params], Params]:
    """Each block's weights, and those of no block or of several; in the order of `params`."""
    owners: dict[nn.Parameter, set[int]] = {}
    for position, layer in enumerate(layers):
        for weight in layer.parameters():
            owners.setdefault(weight, set()).add(position // layers_per_block)
    num_blocks = -(-len(layers) // layers_per_block)
    groups: list[list[tuple[str, nn.Parameter]]] = [[] for _ in range(num_blocks)]
    others: list[tuple[str, nn.Parameter]] = []
    for name, weight in params:
        blocks = owners.get(weight, set())
        (groups[min(blocks)] if len(blocks) == 1 else others).append((name, weight))
    return list(groups), others


def make_planned_optimizer(
    plan: MemoryPlan,
    params: Params,
    layers: Sequence[nn.Module],
    *,
    layers_per_block: int,
    weight_decay: float,
    device: torch.device,
) -> HostAdamW:
    """The optimizer of a plan, with its state where the plan has it.

    Args:
        plan: Adapters on the host bring the moments there too.
        params: What is trained.
        layers: The decoder layers.
        layers_per_block: As the ring's.
        weight_decay: As stock's.
        device: Where the steps are computed.
    """
    groups, others = by_block(params, layers, layers_per_block)
    optimizer = HostAdamW(groups, others, weight_decay=weight_decay, device=device)
    if plan.moments_on_host:
        optimizer.send_moments()
    if plan.adapters_on_host:
        optimizer.send_adapters()
    return optimizer


def travelling_adapters(optimizer: AdapterAdamW) -> TravellingAdapters | None:
    """What `streaming.attach` needs to know of an optimizer's state."""
    return optimizer.travelling if isinstance(optimizer, HostAdamW) else None
