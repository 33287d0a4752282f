"""A LoRA folder's weights, and what a matrix becomes with them: in float32, any rows of it alone.

The one place where adapters are merged. All arithmetic is in float32; whoever stores the result in
16 bits rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from peft.utils.other import get_pattern_key
from torch import Tensor

from poros.adapter_files import CONFIG_FILE, WEIGHTS_FILE, AdapterFolder
from poros.errors import PorosModelError, escape_control
from poros.loading.byte_source import TORCH_DTYPES, read_part
from poros.streaming.file_reader import FilePart
from poros.weights_index import StoredTensor, read_file_header, short_list

_PREFIX = "base_model.model."
_KINDS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_B.bias": "bias",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
}
_CHANGES_ITS_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_UNKNOWN = (
    "fan_in_fan_out", "layer_replication", "trainable_token_indices", "target_parameters",
    "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "megatron_config",
)  # fmt: skip
"""Settings under which the weights mean something else."""


@dataclass(frozen=True)
class LowRank:
    """One module's adapter, in float32.

    Attributes:
        a: (rank, inputs); of an embedding (rank, ids).
        b: (outputs, rank); of an embedding (width, rank).
        scaling: What their product is multiplied by.
        bias: (outputs,), added to the output by itself; None: there is none.
        magnitude: (outputs,) the rows' lengths, of DoRA; None: it is plain LoRA.
        is_embedding: Rows of the matrix are ids.
    """

    a: Tensor
    b: Tensor
    scaling: float
    bias: Tensor | None = None
    magnitude: Tensor | None = None
    is_embedding: bool = False

    def merged(self, rows: Tensor, first: int) -> Tensor:
        """Rows of the matrix with the adapter in them.

        Args:
            rows: (n, width) float32, of the base's matrix; not changed.
            first: Which row of it is the first one.
        """
        last = first + len(rows)
        if self.is_embedding:
            return rows + (self.b @ self.a[:, first:last]).T * self.scaling
        merged: Tensor = rows + self.b[first:last] @ self.a * self.scaling
        if self.magnitude is None:
            return merged
        lengths: Tensor = torch.linalg.norm(merged, dim=1)
        return merged * (self.magnitude[first:last] / lengths).unsqueeze(1)


class LoraWeights:
    """The tensors of a LoRA folder by the module they belong to, read when they are asked for.

    Attributes:
        modules: Paths of the modules with an adapter.
        replaced: Tensors of the base that the folder has a whole new value of.
    """

    def __init__(self, adapter: AdapterFolder) -> None:
        """Read config and headers.

        Raises:
            PorosModelError: A kind of adapter that can't be merged, or a damaged file.
        """
        self._folder, self._config = adapter.path, adapter.config
        self._refuse_kinds()
        self._stored = read_file_header(adapter.path / WEIGHTS_FILE)
        self._parts: dict[str, dict[str, str]] = {}
        self.replaced: dict[str, str] = {}
        for key in self._stored:
            self._sort(key)
        for path, parts in self._parts.items():
            if not {"a", "b"} <= parts.keys():
                raise self._refused(f"{path} has only {short_list(parts.values())}")
        self.modules: tuple[str, ...] = tuple(self._parts)

    def shape_of(self, path: str) -> tuple[int, ...]:
        """Of the matrix that a module's adapter belongs to, by the headers alone."""
        a, b = (self._stored[self._parts[path][kind]].header.shape for kind in ("a", "b"))
        inputs, out = a[-1:], b[:1]
        return inputs + out if "lora_embedding" in self._parts[path]["a"] else out + inputs

    def has_bias(self, path: str) -> bool:
        """Whether a module's adapter adds to its bias."""
        return "bias" in self._parts[path]

    def low_rank(self, path: str) -> LowRank:
        """A module's adapter.

        Raises:
            PorosModelError: Its tensors don't belong together, or hold NaN or infinity.
        """
        tensors = {kind: self._read(key) for kind, key in self._parts[path].items()}
        a, b = tensors["a"], tensors["b"]
        is_embedding = "lora_embedding" in self._parts[path]["a"]
        magnitude = tensors.get("magnitude")
        fits = a.dim() == b.dim() == 2 and a.shape[0] == b.shape[1]
        lengths = [t.shape for kind, t in tensors.items() if kind not in ("a", "b")]
        if not fits or any(shape != (b.shape[0],) for shape in lengths):
            raise self._refused(f"the shapes of {path} don't belong together")
        if magnitude is not None and is_embedding:
            raise self._refused(f"DoRA on an embedding ({path}) is not merged here")
        bias = tensors.get("bias")
        scaling = self._scaling(path, a.shape[0])
        bias = None if bias is None else bias * scaling
        return LowRank(a, b, scaling, bias, magnitude, is_embedding)

    def replacement(self, name: str) -> Tensor:
        """The whole new value of one of the base's tensors, in float32."""
        return self._read(self.replaced[name])

    def refuse_unknown(self, unknown: list[str], where: str) -> None:
        """Refuse an adapter that has what the model has not.

        Raises:
            PorosModelError: With the names.
        """
        if unknown:
            raise PorosModelError(
                f"the adapter belongs to another model: {short_list(unknown)} is not in {where}",
                where=escape_control(str(self._folder)),
                remediation="name the base it was trained on: --base MODEL",
            )

    def refuse_shape(self, name: str, found: tuple[int, ...], needed: tuple[int, ...]) -> None:
        """Refuse weights of another shape than the base's tensor.

        Raises:
            PorosModelError: The two differ.
        """
        if found != needed:
            raise PorosModelError(
                f"the adapter belongs to another model: it has {list(found)} for {name}, the base "
                f"{list(needed)}",
                where=escape_control(str(self._folder)),
                remediation="name the base it was trained on: --base MODEL",
            )

    def _sort(self, key: str) -> None:
        name = key.removeprefix(_PREFIX)
        for ending, kind in _KINDS.items():
            if name.endswith(ending):
                self._parts.setdefault(name.removesuffix(ending), {})[kind] = key
                return
        if not key.startswith(_PREFIX) or "lora_" in name:
            raise self._refused(f"{key} is no tensor of a LoRA adapter that is known here")
        self.replaced[name] = key

    def _read(self, key: str) -> Tensor:
        stored: StoredTensor = self._stored[key]
        header = stored.header
        if header.dtype not in TORCH_DTYPES or not header.num_bytes:
            raise self._refused(f"{key} is {header.dtype} of shape {list(header.shape)}")
        part = FilePart(stored.file, stored.offset_bytes, header.num_bytes)
        tensor = read_part(key, part).view(TORCH_DTYPES[header.dtype]).view(header.shape).float()
        if not bool(tensor.isfinite().all()):
            raise self._refused(f"{key} holds NaN or infinity")
        return tensor

    def _scaling(self, path: str, rank: int) -> float:
        alpha: Any = self._config.get("lora_alpha")
        pattern: dict[str, Any] = self._config.get("alpha_pattern") or {}
        try:
            alpha = float(pattern.get(get_pattern_key(list(pattern), path), alpha))
        except (TypeError, ValueError) as error:
            raise self._refused(f"{CONFIG_FILE}: lora_alpha is {alpha!r}") from error
        return float(alpha) / (math.sqrt(rank) if self._config.get("use_rslora") else rank)

    def _refuse_kinds(self) -> None:
        found = [key for key in _UNKNOWN if self._config.get(key)]
        start: Any = self._config.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGES_ITS_BASE):
            found.append(f"init_lora_weights={start}, which changed the base")
        if found:
            raise self._refused(f"this kind of adapter can't be merged here: {', '.join(found)}")

    def _refused(self, reason: str) -> PorosModelError:
        return PorosModelError(
            reason,
            where=escape_control(str(self._folder)),
            remediation="merge it with PEFT: PeftModel.from_pretrained, then merge_and_unload",
        )


def tied_names(tied: Mapping[str, str], touched: set[str]) -> set[str]:
    """Which copies of shared tensors stop to be copies: one of the two is changed alone.

    Args:
        tied: Name of a copy to the name it shares a tensor with.
        touched: The tensors that the adapter changes.
    """
    return {copy for copy, source in tied.items() if {copy, source} & touched}
