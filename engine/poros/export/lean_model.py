"""A model whose matrices stay in their files: a forward reads some rows of one at a time.

In float32, for a look at logits on a machine that could not hold the model.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from poros.export.row_reader import read_rows, row_ranges
from poros.loading.byte_source import ByteSource
from poros.loading.lora_merge import LoraWeights, LowRank
from poros.loading.model_filler import ModelFiller


def lean_model(filler: ModelFiller, adapter: LoraWeights | None = None) -> PreTrainedModel:
    """The model of a folder, ready for a forward without gradients.

    Args:
        filler: Its skeleton in float32 and its tensors' names.
        adapter: Goes beside the base's matrices, unmerged.
    """
    skeleton = filler.skeleton
    reader = _Reader(filler, adapter)
    for path, module in skeleton.model.named_modules():
        stem = f"{path}." if path else ""
        for leaf in [name for name, _ in module.named_parameters(recurse=False)]:
            lazy = leaf == "weight" and _is_lazy(module)
            value = torch.empty(0) if lazy else reader.whole(stem + leaf)
            setattr(module, leaf, nn.Parameter(value, requires_grad=False))
        for leaf in list(module._buffers):
            if leaf not in module._non_persistent_buffers_set and module._buffers[leaf] is not None:
                module._buffers[leaf] = reader.whole(stem + leaf)
        if _is_lazy(module):
            _read_at_each_call(module, path, reader)
    model: PreTrainedModel = skeleton.model.eval()
    return model


class _Reader:
    """The model's tensors by the model's names, in float32."""

    def __init__(self, filler: ModelFiller, adapter: LoraWeights | None) -> None:
        self._source: ByteSource = filler.source
        self._stored, self._tied = filler.match.stored_name, filler.skeleton.tied
        self.adapter = adapter

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.header(self._name(name)).shape

    def rows(self, name: str, first: int, last: int) -> Tensor:
        if self.adapter is not None and name in self.adapter.replaced:
            return self.adapter.replacement(name)[first:last]
        return read_rows(self._source, self._name(name), first, last).float()

    def whole(self, name: str) -> Tensor:
        shape = self.shape(name)
        return self.rows(name, 0, shape[0] if shape else 1).reshape(shape)

    def low_rank(self, path: str) -> LowRank | None:
        beside = self.adapter is not None and path in self.adapter.modules
        return self.adapter.low_rank(path) if self.adapter is not None and beside else None

    def _name(self, name: str) -> str:
        return self._stored[self._tied.get(name, name)]


def _is_lazy(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Embedding)


def _read_at_each_call(module: nn.Module, path: str, reader: _Reader) -> None:
    if isinstance(module, nn.Embedding):
        module.forward = _embedding(module, path, reader)  # type: ignore[assignment]
    else:
        assert isinstance(module, nn.Linear)
        module.forward = _linear(module, path, reader)  # type: ignore[assignment]


def _linear(module: nn.Linear, path: str, reader: _Reader) -> Callable[[Tensor], Tensor]:
    name = f"{path}.weight"

    def forward(inputs: Tensor) -> Tensor:
        low_rank = reader.low_rank(path)
        dora = low_rank is not None and low_rank.magnitude is not None
        parts = []
        for first, last in row_ranges(reader.shape(name)):
            rows = reader.rows(name, first, last)
            # DoRA has no form of its own beside the matrix: it scales the matrix's rows.
            rows = low_rank.merged(rows, first) if dora and low_rank is not None else rows
            parts.append(F.linear(inputs, rows))
        outputs = torch.cat(parts, dim=-1)
        if module.bias is not None:
            outputs = outputs + module.bias
        if low_rank is None:
            return outputs
        if low_rank.bias is not None:
            outputs = outputs + low_rank.bias
        if dora:
            return outputs
        return outputs + F.linear(F.linear(inputs, low_rank.a), low_rank.b) * low_rank.scaling

    return forward


def _embedding(module: nn.Embedding, path: str, reader: _Reader) -> Callable[[Tensor], Tensor]:
    own, name = module.forward, f"{path}.weight"

    def forward(ids: Tensor) -> Tensor:
        used, places = ids.unique(return_inverse=True)
        rows = torch.cat([reader.rows(name, int(k), int(k) + 1) for k in used])
        low_rank = reader.low_rank(path)
        if low_rank is not None:
            rows = rows + (low_rank.b @ low_rank.a[:, used]).T * low_rank.scaling
        # The module's own forward may scale what it looks up.
        padding, module.padding_idx = module.padding_idx, None
        away, module.weight = module.weight, nn.Parameter(rows, requires_grad=False)
        try:
            return own(places)
        finally:
            module.weight, module.padding_idx = away, padding

    return forward
