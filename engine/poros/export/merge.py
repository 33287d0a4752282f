"""The merged model, tensor by tensor: what each of them is called, and its bytes in pieces."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poros.errors import PorosModelError
from poros.events import Event
from poros.export.row_reader import read_rows, row_ranges
from poros.loading.byte_source import TORCH_DTYPES, ByteSource
from poros.loading.lora_merge import LoraWeights, LowRank, tied_names
from poros.loading.model_filler import LoadPlan, ModelFiller
from poros.loading.probe import architecture_of
from poros.loading.tensor_writer import Shape
from poros.loading.text_part import RenamedSource
from poros.model_config import check_config, is_prequantised

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DTYPE_NAMES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Merged:
    """A tensor of the merged model.

    Attributes:
        name: In the new files.
        model_name: What the model, and so the adapter, calls it.
        stored: The base's tensor that it is made of.
        shape: What it becomes.
    """

    name: str
    model_name: str
    stored: str
    shape: Shape


class Merge:
    """A base and an adapter that fit each other.

    Attributes:
        source: The base's 16-bit files.
        adapter: The adapter's.
        filler: The model without its weights, paired with the base's tensors.
        tensors: What the merged model consists of.
        untied: Names of tensors that were copies of others, and are not any more.
        num_merged: How many tensors the adapter changes.
    """

    def __init__(
        self,
        source: ByteSource,
        adapter: LoraWeights,
        *,
        dtype: torch.dtype | None,
        emit: Callable[[Event], None],
    ) -> None:
        """Pair them; no weight is read.

        Args:
            source: The base.
            adapter: What is merged into it.
            dtype: Of the merged floats; None: as the base's files have them.
            emit: Is told of tensors that are left alone.

        Raises:
            PorosModelError: The base is quantised, or the two don't belong together.
        """
        self.source, self.adapter, self._dtype = source, adapter, dtype
        self.filler = paired(source, emit)
        self._known = self._stored_names()
        changed = {f"{path}.weight" for path in adapter.modules} | adapter.replaced.keys()
        changed |= {f"{path}.bias" for path in adapter.modules if adapter.has_bias(path)}
        tied = self.filler.skeleton.tied
        adapter.refuse_unknown(sorted(changed - self._known.keys() - tied.keys()), source.name)
        self._check_shapes()
        self.num_merged = len(changed)
        self.untied = tied_names(tied, changed)
        self.tensors: list[Merged] = self._list()

    def pieces(self, tensor: Merged) -> Iterator[Tensor]:
        """The merged tensor's bytes, some rows at a time.

        Raises:
            PorosModelError: The base's file is damaged, or a value has no place in the new type.
        """
        low_rank, change = self._change(tensor.model_name)
        as_stored = low_rank is None and change is None
        for first, last in row_ranges(tensor.shape.shape):
            rows = read_rows(self.source, tensor.stored, first, last)
            if as_stored and rows.dtype == tensor.shape.dtype:
                yield rows
                continue
            merged = rows.float()
            if low_rank is not None:
                merged = low_rank.merged(merged, first)
            elif change is not None:
                merged = change(merged, first)
            made = merged.to(tensor.shape.dtype)
            if not bool(made.isfinite().all()):
                kind = DTYPE_NAMES[tensor.shape.dtype]
                raise PorosModelError(
                    f"the merged tensor has values that are no {kind} numbers",
                    where=f"tensor {tensor.name}",
                    remediation="take --dtype bf16, which has float32's range",
                )
            yield made

    def _change(self, name: str) -> tuple[LowRank | None, Callable[[Tensor, int], Tensor] | None]:
        path, _, leaf = name.rpartition(".")
        if name in self.adapter.replaced:
            whole = self.adapter.replacement(name)
            return None, functools.partial(_replaced, whole)
        if path in self.adapter.modules and leaf == "weight":
            return self.adapter.low_rank(path), None
        if path in self.adapter.modules and leaf == "bias" and self.adapter.has_bias(path):
            bias = self.adapter.low_rank(path).bias
            assert bias is not None
            return None, functools.partial(_added, bias)
        return None, None

    def _stored_names(self) -> dict[str, str]:
        """The source's name of each of the model's tensors."""
        inner = self.filler.source
        stored = self.filler.match.stored_name
        if inner is self.source or not isinstance(inner, RenamedSource):
            return dict(stored)
        return {name: inner.stored_as(under) for name, under in stored.items()}

    def _check_shapes(self) -> None:
        tied = self.filler.skeleton.tied
        for path in self.adapter.modules:
            name = f"{path}.weight"
            stored = self._known[tied.get(name, name)]
            self.adapter.refuse_shape(
                name, self.adapter.shape_of(path), self.source.header(stored).shape
            )
        for name in self.adapter.replaced:
            stored = self._known[tied.get(name, name)]
            shape = tuple(self.adapter.replacement(name).shape)
            self.adapter.refuse_shape(name, shape, self.source.header(stored).shape)

    def _list(self) -> list[Merged]:
        own = {stored: name for name, stored in self._known.items()}
        tied = self.filler.skeleton.tied
        apart = self.untied | {tied[copy] for copy in self.untied}
        found = [
            self._merged(stored, own.get(stored, stored), stored) for stored in self.source.names()
        ]
        kept = [tensor for tensor in found if tensor.model_name not in apart]
        for name in sorted(apart):
            stored = self._known[tied.get(name, name)]
            kept.append(self._merged(name, name, stored))
        return kept

    def _merged(self, name: str, model_name: str, stored: str) -> Merged:
        header = self.source.header(stored)
        dtype = TORCH_DTYPES[header.dtype]
        if self._dtype is not None and dtype.is_floating_point:
            dtype = self._dtype
        return Merged(name, model_name, stored, Shape(dtype, header.shape))


def paired(source: ByteSource, emit: Callable[[Event], None]) -> ModelFiller:
    """The model of a 16-bit folder, in float32 and without its weights, and its tensors' names.

    Raises:
        PorosModelError: It is quantised, refused, or its files disagree.
    """
    spec = architecture_of(source.config, where=source.name)
    # No code of the model runs here, and the merged config leaves its auto_map out.
    check_config(source.config, spec, where=source.name, trust_remote_code=True)
    if is_prequantised(source.config, where=source.name):
        raise PorosModelError(
            "the base's files are 4-bit already, nothing can be merged into them",
            where=source.name,
            remediation="name its 16-bit original: --base MODEL",
        )
    plan = LoadPlan(_CPU, "bf16", torch.float32, 1, None, emit, False, spec)
    return ModelFiller(source, plan)


def merged_config(merge: Merge, dtype: torch.dtype | None) -> dict[str, Any]:
    """The merged model's config.json."""
    config = {key: value for key, value in merge.source.config.items() if key != "auto_map"}
    config.setdefault("architectures", [merge.filler.plan.architecture.hf_class])
    if dtype is not None:
        key = "torch_dtype" if "torch_dtype" in config else "dtype"
        config[key] = DTYPE_NAMES[dtype]
    if merge.untied:
        config["tie_word_embeddings"] = False
    return config


def _replaced(whole: Tensor, rows: Tensor, first: int) -> Tensor:
    flat = whole.reshape(-1, *whole.shape[1:]) if whole.dim() else whole.reshape(1)
    return flat[first : first + len(rows)]


def _added(bias: Tensor, rows: Tensor, first: int) -> Tensor:
    return rows + bias[first : first + len(rows)]
