"""How large a model is, and whether its config belongs to it: from safetensors headers alone.

[Note: which tensors become NF4]
Matrices inside the layers, and those outside that are neither embeddings nor the head: what
transformers replaces by `Linear4bit`. Everything else stays in 16 bits.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poros.weights_index import TensorHeader, short_list

_ALIGNMENT_BYTES = 256
_NF4_GROUP, _ABSMAX_GROUP, _FLOAT_BYTES = 64, 256, 4
_INDEX = re.compile(r"[0-9]{1,9}")
_IN_A_LIST = re.compile(r"(.*?)\.[0-9]{1,9}\.")


@dataclass(frozen=True)
class Linear:
    """A matrix that becomes NF4; its shape is unknown where it is packed already."""

    name: str
    shape: tuple[int, ...]
    num_params: int


@dataclass(frozen=True)
class Sizes:
    """What the weights take; GB are not formed here.

    Attributes:
        num_params: All parameters of the text model, tied ones once.
        num_layers: Decoder layers stored.
        layer_kinds: How many layers of each kind the config names.
        dense_bytes: All of it in 16 bits.
        nf4_bytes: All of it with the layers' matrices in NF4.
        dense_layer_bytes: Of the largest layer, as it travels.
        nf4_layer_bytes: Of the largest layer in NF4, as it travels.
        ends_bytes: What stays outside the layers when they are NF4: embeddings, norms, head.
        largest_linear: The matrix that takes most memory while it is quantised.
        tied: Whether the head is the embeddings' own tensor.
    """

    num_params: int
    num_layers: int
    layer_kinds: dict[str, int]
    dense_bytes: int
    nf4_bytes: int
    dense_layer_bytes: int
    nf4_layer_bytes: int
    ends_bytes: int
    largest_linear: Linear | None
    tied: bool


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint; ``packed``: it becomes NF4, or is."""

    name: str
    shape: tuple[int, ...]
    num_params: int
    packed: bool

    @property
    def linear(self) -> Linear:
        """It, if it is a matrix that becomes NF4."""
        return Linear(self.name, self.shape, self.num_params)

    @property
    def dense_bytes(self) -> int:
        """In 16 bits, as it travels."""
        return _aligned(2 * self.num_params)

    @property
    def nf4_bytes(self) -> int:
        """As it travels: packed, if it is a matrix that becomes NF4."""
        if not self.packed:
            return self.dense_bytes
        num_groups = math.ceil(self.num_params / _NF4_GROUP)
        nested = math.ceil(num_groups / _ABSMAX_GROUP) * _FLOAT_BYTES
        parts = (math.ceil(self.num_params / 2), num_groups, nested, _FLOAT_BYTES)
        return sum(map(_aligned, parts))


def find_layers(names: Mapping[str, TensorHeader]) -> str:
    """The list that most bytes lie in, ``model.layers``; empty: there is none."""
    num_bytes: Counter[str] = Counter()
    for name, header in names.items():
        if found := _IN_A_LIST.match(name):
            num_bytes[found[1]] += header.num_bytes
    return num_bytes.most_common(1)[0][0] if num_bytes else ""


def sizes(
    headers: Mapping[str, TensorHeader], config: Mapping[str, Any], layers_path: str
) -> Sizes:
    """Add the model up.

    Args:
        headers: The text model's tensors by its own names, those that it has no use for left out.
        config: Of the text model.
        layers_path: Where its layers are.
    """
    tied = is_tied(headers, config)
    layers: dict[int, list[Stored]] = {}
    ends: list[Stored] = []
    for tensor in stored_tensors(headers, config, layers_path):
        index = layer_of(tensor.name, layers_path)
        if index is not None:
            layers.setdefault(index, []).append(tensor)
        elif not (tied and is_head(tensor.name)):
            ends.append(tensor)
    everything = [*ends, *(tensor for layer in layers.values() for tensor in layer)]
    linears = [t for t in everything if t.packed]
    largest = max(linears, key=lambda t: t.num_params, default=None)
    return Sizes(
        num_params=sum(t.num_params for t in everything),
        num_layers=len(layers),
        layer_kinds=_kinds(config),
        dense_bytes=sum(t.dense_bytes for t in everything),
        nf4_bytes=sum(t.nf4_bytes for t in everything),
        dense_layer_bytes=max((_sum(layer, "dense_bytes") for layer in layers.values()), default=0),
        nf4_layer_bytes=max((_sum(layer, "nf4_bytes") for layer in layers.values()), default=0),
        ends_bytes=_sum(ends, "nf4_bytes"),
        largest_linear=largest.linear if largest else None,
        tied=tied,
    )


def mismatches(
    headers: Mapping[str, TensorHeader], config: Mapping[str, Any], layers_path: str
) -> list[str]:
    """What config.json says and the weights don't, each by the names of key and tensor.

    What the headers can't tell is found when the model is loaded, before training.
    """
    indices = {i for name in headers if (i := layer_of(name, layers_path)) is not None}
    wrong = []
    wanted, found = config.get("num_hidden_layers"), len(indices)
    if not found == wanted == max(indices, default=-1) + 1:
        wrong.append(f"num_hidden_layers is {wanted}, the weights have {found} at {layers_path}")
    wrong += _wrong_ends(headers, config, layers_path)
    wrong += _wrong_widths(headers, config, layers_path)
    return wrong


def layer_of(name: str, layers_path: str) -> int | None:
    """The index of the layer that a tensor belongs to; None: it lies outside."""
    if not name.startswith(f"{layers_path}."):
        return None
    index = name[len(layers_path) + 1 :].partition(".")[0]
    return int(index) if _INDEX.fullmatch(index) else None


def is_head(name: str) -> bool:
    """Whether a tensor outside the layers is the output head's."""
    return name.rpartition(".")[0].rpartition(".")[2] in ("lm_head", "embed_out")


def stored_tensors(
    headers: Mapping[str, TensorHeader], config: Mapping[str, Any], layers_path: str
) -> Iterator[Stored]:
    """Every tensor once, a packed one with its parts."""
    for name, header in headers.items():
        num_params = math.prod(header.shape)
        if f"{name}.absmax" in headers:  # packed by bitsandbytes, two to a byte
            yield Stored(name, (), 2 * num_params, packed=True)
        elif ".weight." not in name:  # else a part of a packed one
            inside = layer_of(name, layers_path) is not None
            matrix = len(header.shape) == 2 and name.endswith(".weight")
            linear = matrix and (inside or not _has_rows_of_words(name, header, config))
            yield Stored(name, header.shape, num_params, packed=linear)


def _has_rows_of_words(name: str, header: TensorHeader, config: Mapping[str, Any]) -> bool:
    return header.shape[0] == config.get("vocab_size") or "embed" in name or is_head(name)


def is_tied(headers: Iterable[str], config: Mapping[str, Any]) -> bool:
    """Whether the head is the embeddings' own tensor."""
    said = config.get("tie_word_embeddings")
    # A config that doesn't say leaves it to its class; the weights tell in either case.
    return said if isinstance(said, bool) else not any(map(is_head, headers))


def _kinds(config: Mapping[str, Any]) -> dict[str, int]:
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return dict(Counter(map(str, kinds)))
    num_layers = config.get("num_hidden_layers")
    return {"full_attention": num_layers} if isinstance(num_layers, int) else {}


def _wrong_ends(
    headers: Mapping[str, TensorHeader], config: Mapping[str, Any], layers_path: str
) -> list[str]:
    """Embeddings and head must have a row for each word, as wide as the hidden state."""
    outside = {n: h for n, h in headers.items() if layer_of(n, layers_path) is None}
    wanted = (config.get("vocab_size"), config.get("hidden_size"))
    heads = [name for name in outside if is_head(name) and len(outside[name].shape) == 2]
    wrong = [
        f"{name} is {list(outside[name].shape)}, expected {list(wanted)} from vocab_size and "
        "hidden_size"
        for name in heads
        if outside[name].shape != wanted
    ]
    if not any(len(h.shape) == 2 and h.shape[0] == wanted[0] for h in outside.values()):
        shapes = [f"{n} is {list(h.shape)}" for n, h in outside.items() if len(h.shape) == 2]
        wrong.append(
            f"vocab_size is {wanted[0]}, no embeddings have as many rows: {', '.join(shapes)}"
        )
    if config.get("tie_word_embeddings") is False and not heads:
        wrong.append("tie_word_embeddings is false, but the weights have no head")
    return wrong


def _wrong_widths(
    headers: Mapping[str, TensorHeader], config: Mapping[str, Any], layers_path: str
) -> list[str]:
    """Norms and projections at both ends of a layer are as wide as the hidden state."""
    hidden = config.get("hidden_size")
    wrong: dict[tuple[int, ...], list[str]] = {}
    for name, header in headers.items():
        leaf = name.rpartition(".weight")[0].rpartition(".")[2]
        if layer_of(name, layers_path) is None or not name.endswith(".weight"):
            continue
        width = {"input_layernorm": 0, "q_proj": 1, "qkv_proj": 1, "o_proj": 0, "down_proj": 0}
        axis = width.get(leaf)
        packed = f"{name}.absmax" in headers
        if axis is not None and not packed and header.shape[axis : axis + 1] != (hidden,):
            wrong.setdefault(header.shape, []).append(name)
    told = (f"{short_list(names)} is {list(shape)}" for shape, names in wrong.items())
    return [f"hidden_size is {hidden}, {', '.join(told)}"] if wrong else []


def _sum(tensors: list[Stored], size: str) -> int:
    return sum(getattr(tensor, size) for tensor in tensors)


def _aligned(num_bytes: int) -> int:
    return math.ceil(num_bytes / _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
