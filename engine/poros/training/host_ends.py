"""Head and embeddings on the host: the head visits the device, embeddings' rows are gathered here.

[Note: a gathered row is a copy]
`F.embedding` copies rows, so it has the same bits on any device. Some families scale the rows in
the module itself (Gemma's `embed_scale`): one product of two numbers of the same type. In a short
type their significands have at most 11 bits, the product at most 22, which a float holds: it is
rounded once, to the nearest, on the host and on the device alike. So is a product of two floats.

[Note: one tensor on the host for two modules]
A tied head and its embedding have one Parameter. Here the head gets one of its own, so that its
visit does not move the embedding; both look at the same bytes of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from poros.events import Event, Warned
from poros.loading.base_model import BaseModel
from poros.loading.record_check import resident_paths
from poros.memory_plan import MemoryPlan
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.visitor import Visitor
from poros.training.streamed_head import StreamedHead

Emit = Callable[[Event], None]


class HostEmbedding:
    """An embedding whose weight stays on the host.

    The module keeps an empty weight on the device, so that the model is where its parameters are.
    """

    def __init__(self, module: nn.Embedding, weight: Tensor, device: torch.device) -> None:
        """Put the forward on.

        Args:
            module: The model's own, scaled or not; its buffers are brought to the host.
            weight: Its rows, on the host.
            device: Where the rows go.
        """
        self.module, self.weight = module, nn.Parameter(weight, requires_grad=False)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.cpu()
        self._device, self._own = device, module.forward
        module.weight = self._away = _placeholder(weight, device)
        module.forward = self._forward  # type: ignore[assignment,method-assign]

    def detach(self, device: torch.device | None = None) -> None:
        """Give the module its forward and its weight, where it computes or on another device."""
        del self.module.forward
        self.module.weight = nn.Parameter(self.weight.detach(), requires_grad=False)
        self.module.to(device or self._device)

    def _forward(self, ids_BT: Tensor) -> Tensor:
        # The ids come from the host, and here it waits for them: once a micro-batch.
        self.module.weight = self.weight
        try:
            rows_BTD = self._own(host_ids(ids_BT))
        finally:
            self.module.weight = self._away
        if self._device.type == "cuda":
            rows_BTD = rows_BTD.pin_memory()  # else the copy would wait for all queued kernels
        return rows_BTD.to(self._device, non_blocking=True)


def host_ids(ids_BT: Tensor) -> Tensor:
    """The token ids on the host."""
    return ids_BT.cpu()


@dataclass
class HostEnds:
    """What of a model's ends is on the host.

    Attributes:
        device: Where the model computes.
        candidates: The embeddings that can be, by path.
        tied: Those of them that had one weight with the head.
        head: The output embedding, if its weight is.
        block: Its tensors.
        embeddings: Whose weights are, by path.
        paths: The modules that stay there: nobody moves them to the device.
        num_bytes: Of all these tensors, tied ones once.
        why_resident: Why the head is on the device though the plan has it on the host.
    """

    device: torch.device
    candidates: dict[str, nn.Embedding] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    head: nn.Linear | None = None
    block: Block | None = None
    embeddings: dict[str, HostEmbedding] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    num_bytes: int = 0
    why_resident: str = ""

    def away(self) -> dict[str, Tensor]:
        """What the modules have on the device while their tensors are on the host: no elements."""
        head = dict(self.head.named_parameters(recurse=False)) if self.head is not None else {}
        return {f"head.{name}": tensor for name, tensor in head.items()} | {
            path: embedding.module.weight for path, embedding in self.embeddings.items()
        }

    def take(self, model: PreTrainedModel, plan: MemoryPlan) -> None:
        """Bring to the host what the plan has there, from wherever it lies.

        Args:
            model: transformers' model; what an adapter is on stays where it is.
            plan: What has no head or embeddings on the host takes none back.
        """
        if plan.head_on_host and self.head is None and not self.why_resident:
            self._take_head(model)
        for path, module in self.candidates.items() if plan.embeddings_on_host else ():
            if path in self.embeddings or model.get_submodule(path) is not module:
                continue
            weight = module.weight.detach().cpu()
            if self.block is not None and path in self.tied:
                weight = self.block.tensor("weight")
            else:
                self.num_bytes += weight.numel() * weight.element_size()
            self.embeddings[path] = HostEmbedding(module, weight, self.device)
            self.paths += (path,)

    def _take_head(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        self.why_resident = _unusual(model, head)
        if self.why_resident:
            return
        assert isinstance(head, nn.Linear)
        # A Parameter of its own: a tied embedding keeps the one that they had in common.
        head.weight = nn.Parameter(head.weight.detach(), requires_grad=False)
        frozen = [FrozenTensor(name, p, "data") for name, p in head.named_parameters(recurse=False)]
        # Where the load put it, if that can be pinned: a copy would have the largest tensor twice.
        alone = len(frozen) == 1 and head.weight.device.type == "cpu"
        block = Block.around(0, frozen[0], device=self.device) if alone else None
        self.head, self.block = head, block or Block.lay_out(0, frozen, device=self.device)
        self.num_bytes += self.block.num_bytes

    def attach(
        self,
        model: PreTrainedModel,
        manager: BlockManager,
        *,
        prefetch: bool,
        emit: Emit,
        num_chunk_rows: int | None = None,
    ) -> StreamedHead | None:
        """Stream the head through the ring's lane; adapters may be on the model.

        Args:
            model: transformers' model.
            manager: The ring.
            prefetch: Fetch the head while the last blocks compute; it needs room beside them.
            emit: Is told if the head has to be on the device.
            num_chunk_rows: Rows of a chunk of the loss; None: by memory.
        """
        self._give_back_adapted(model)
        if self.why_resident:
            message = f"the head stays on the device: {self.why_resident}"
            emit(Warned(code="head-resident", message=message))
        if self.head is None or self.block is None:
            return None
        visitor = Visitor(self.block, manager, device=self.device)
        if prefetch:
            manager.when_idle = visitor.fetch
        return StreamedHead(model, self.head, visitor, num_chunk_rows=num_chunk_rows)

    def _give_back_adapted(self, model: PreTrainedModel) -> None:
        """Put on the device what an adapter was put around: its arithmetic is stock's there."""
        if self.head is not None and model.get_output_embeddings() is not self.head:
            self._return_head("an adapter is on it")
        for path, embedding in list(self.embeddings.items()):
            if model.get_submodule(path) is not embedding.module:
                self.embeddings.pop(path).detach()

    def give_back(self, device: torch.device) -> None:
        """Give all that is on the host back to its modules, for a model that nothing streams.

        Args:
            device: Where it goes, tied tensors once.
        """
        head = self.head
        if head is not None:
            self._return_head("it was given back", device)
        for path, embedding in self.embeddings.items():
            embedding.detach(device)
            if head is not None and path in self.tied:
                embedding.module.weight = head.weight
        self.embeddings = {}

    def _return_head(self, why: str, device: torch.device | None = None) -> None:
        assert self.head is not None
        assert self.block is not None
        for name in dict(self.head.named_parameters(recurse=False)):
            weight = self.block.tensor(name).to(device or self.device, copy=True)
            setattr(self.head, name, nn.Parameter(weight, requires_grad=False))
        self.head, self.block, self.why_resident = None, None, why


def take_ends(base: BaseModel, plan: MemoryPlan, device: torch.device) -> HostEnds:
    """Lay out on the host what the plan keeps there; call it before `place_ends`.

    Args:
        base: Its ends are on the host.
        plan: What is to stay.
        device: Where the model computes.
    """
    modules = dict(base.model.named_modules())
    head = base.model.get_output_embeddings()
    resident = resident_paths(base.model, base.architecture)
    embeddings = {p: m for p in resident if isinstance(m := modules[p], nn.Embedding)}
    tied = [
        path
        for path, module in embeddings.items()
        if isinstance(head, nn.Linear) and module.weight is head.weight
    ]
    ends = HostEnds(device, embeddings, tuple(tied))
    ends.take(base.model, plan)
    ends.paths += tuple(path for path in resident if modules[path] is ends.head)
    return ends


def _unusual(model: PreTrainedModel, head: object) -> str:
    """Why the exact loss is not this model's; empty: it is."""
    if type(head) is not nn.Linear:
        return f"it is a {type(head).__name__}, not a plain linear"
    if model.loss_function is not ForCausalLMLoss:
        return "the model's loss is not that of causal language models"
    return ""


def _placeholder(weight: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty(0, dtype=weight.dtype, device=device), requires_grad=False)
