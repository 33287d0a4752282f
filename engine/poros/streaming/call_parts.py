"""A layer's call taken apart: each tensor once, and a frame that takes other tensors.

[Note: each tensor once]
A tensor that comes under two names is one input, and one that goes out under two names is one
output: split in two, its gradients would be added in another order than in a resident model.

[Note: shared mappings]
A mapping that layers write and later layers read (keys and values, say) is the same for all of
them; a recompute must see it as its layer did. So a layer gets a fresh one of the same type, and
the call's caller writes the changes into the model's own. An entry that was only read, and takes
gradients, goes out again as well: its later readers' gradients then arrive before the layer's
own are added, as in a resident model.
"""

from __future__ import annotations

import copy
import inspect
from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

Drop = Callable[[object], bool]
"""True for a value (a KV cache) that a layer may not see while gradients are on."""


@dataclass(frozen=True)
class TensorSlot:
    """Where a tensor stood."""

    index: int


@dataclass(frozen=True)
class _MappingSlot:
    index: int


class Changes(NamedTuple):
    """What a call did to a mapping: entries only read that take gradients, written, removed."""

    passed: dict[Any, Any]
    written: dict[Any, Any]
    removed: list[Any]

    def apply_to(self, mapping: MutableMapping[Any, Any]) -> None:
        """Make them in the model's own mapping."""
        for key in self.removed:
            del mapping[key]
        mapping.update(self.passed | self.written)


class Place(NamedTuple):
    """Where a layer finds a tensor: under which argument, and which entry of a shared mapping."""

    argument: str
    in_mapping: bool = False
    key: Any = None


@dataclass(frozen=True)
class Frame:
    """A value without its tensors."""

    leaves: list[Any]
    spec: pytree.TreeSpec

    def filled(
        self, tensors: Sequence[Tensor], mappings: Sequence[MutableMapping[Any, Any]] = ()
    ) -> Any:
        """The value with `tensors` (and `mappings`) where its own were."""
        return pytree.tree_unflatten(
            [
                tensors[leaf.index]
                if isinstance(leaf, TensorSlot)
                else mappings[leaf.index]
                if isinstance(leaf, _MappingSlot)
                else leaf
                for leaf in self.leaves
            ],
            self.spec,
        )

    def tensor_indices(self) -> list[int]:
        """Which tensors it takes, in its order."""
        return [leaf.index for leaf in self.leaves if isinstance(leaf, TensorSlot)]


class Parts:
    """Takes values apart; holds their tensors and their shared mappings, each once."""

    def __init__(self, drop: Drop = lambda _: False) -> None:
        """Values for which `drop` is true become None."""
        self.tensors: list[Tensor] = []
        self.mappings: list[MutableMapping[Any, Any]] = []
        self._drop = drop
        self._index: dict[int, int] = {}

    def frame(self, value: object, *, mappings_apart: bool = False) -> Frame:
        """Take `value` apart, into a frame; mappings are containers unless kept apart."""
        drop = self._drop  # not self: pytree keeps `is_leaf` in a cycle, and tensors with it

        def is_leaf(node: object) -> bool:
            return drop(node) or (mappings_apart and isinstance(node, MutableMapping))

        leaves, spec = pytree.tree_flatten(value, is_leaf=is_leaf)
        return Frame([self._slot(leaf, mappings_apart) for leaf in leaves], spec)

    def _slot(self, leaf: object, mappings_apart: bool) -> Any:
        if self._drop(leaf):
            return None
        if isinstance(leaf, Tensor):
            if id(leaf) not in self._index:
                self._index[id(leaf)] = len(self.tensors)
                self.tensors.append(leaf)
            return TensorSlot(self._index[id(leaf)])
        if mappings_apart and isinstance(leaf, dict | UserDict):
            if id(leaf) not in self._index:
                self._index[id(leaf)] = len(self.mappings)
                self.mappings.append(leaf)
            return _MappingSlot(self._index[id(leaf)])
        return leaf


@dataclass(frozen=True)
class MappingFrame:
    """A shared mapping as it was at the call, without its tensors."""

    empty: MutableMapping[Any, Any]
    entries: dict[Any, Frame]

    @classmethod
    def of(cls, mapping: MutableMapping[Any, Any], parts: Parts) -> MappingFrame:
        """Take `mapping` apart; what type and default it has stays."""
        empty = copy.copy(mapping)
        empty.clear()
        entries = {key: parts.frame(value, mappings_apart=True) for key, value in mapping.items()}
        return cls(empty, entries)

    def filled(self, tensors: Sequence[Tensor]) -> MutableMapping[Any, Any]:
        """A fresh mapping of the same type."""
        fresh = copy.copy(self.empty)
        fresh.update({key: frame.filled(tensors) for key, frame in self.entries.items()})
        return fresh

    def changes(
        self,
        mapping: MutableMapping[Any, Any],
        tensors: Sequence[Tensor],
        requires_grad: Sequence[bool],
    ) -> Changes:
        """What happened to `mapping`, which was filled with `tensors`; which take gradients."""
        passed, written = {}, {}
        for key, value in mapping.items():
            frame = self.entries.get(key)
            if frame is None or not same_value(frame.filled(tensors), value):
                written[key] = value
            elif any(requires_grad[index] for index in frame.tensor_indices()):
                passed[key] = value
        return Changes(passed, written, [key for key in self.entries if key not in mapping])


@dataclass(frozen=True)
class Call:
    """The arguments of a call, without their tensors.

    Attributes:
        arguments: Positional ones, then those with a keyword.
        mappings: The shared mappings among them, each once.
        keywords: The keywords.
        num_direct: So many of the call's tensors, the first ones, are in no mapping.
    """

    arguments: list[Frame]
    mappings: list[MappingFrame]
    keywords: tuple[str, ...]
    num_direct: int

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any], drop: Drop) -> tuple[Call, Parts]:
        """The call, and the tensors and the model's own mappings that were in it."""
        parts = Parts(drop)
        values = [*args, *kwargs.values()]
        arguments = [parts.frame(value, mappings_apart=True) for value in values]
        num_direct = len(parts.tensors)
        mappings = [MappingFrame.of(mapping, parts) for mapping in list(parts.mappings)]
        return cls(arguments, mappings, tuple(kwargs), num_direct), parts

    def filled(self, tensors: Sequence[Tensor]) -> tuple[list[Any], list[MutableMapping[Any, Any]]]:
        """The arguments on other tensors, and the fresh mappings that are among them."""
        mappings = [mapping.filled(tensors) for mapping in self.mappings]
        return [frame.filled(tensors, mappings) for frame in self.arguments], mappings

    def split(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of `filled`'s values."""
        num_args = len(values) - len(self.keywords)
        return values[:num_args], dict(zip(self.keywords, values[num_args:], strict=True))

    def argument_names(self, forward: Callable[..., Any]) -> list[str]:
        """What `forward` calls the arguments."""
        num_args = len(self.arguments) - len(self.keywords)
        try:
            parameters = list(inspect.signature(forward).parameters.values())
        except (TypeError, ValueError):  # a forward made elsewhere need not say
            parameters = []
        known = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD][:num_args]
        unknown = [f"argument {k + 1}" for k in range(len(known), num_args)]
        return [*known, *unknown, *self.keywords]

    def entries(self, frame: Frame) -> Iterator[tuple[Any, Frame]]:
        """Keys and values of the shared mappings in an argument."""
        for leaf in frame.leaves:
            if isinstance(leaf, _MappingSlot):
                yield from self.mappings[leaf.index].entries.items()

    def places(self, forward: Callable[..., Any]) -> list[Place]:
        """Where each tensor is found first."""
        found: dict[int, Place] = {}
        for name, frame in zip(self.argument_names(forward), self.arguments, strict=True):
            for index in frame.tensor_indices():
                found.setdefault(index, Place(name))
            for key, entry in self.entries(frame):
                for index in entry.tensor_indices():
                    found.setdefault(index, Place(name, in_mapping=True, key=key))
        return [found[index] for index in sorted(found)]

    def mapping_argument(self, mapping: int) -> int:
        """Which argument a mapping is found under first."""
        slot = _MappingSlot(mapping)
        return next(k for k, frame in enumerate(self.arguments) if slot in frame.leaves)

    def odd_argument(self) -> int | None:
        """The first argument with a mapping of a kind, or at a place, that isn't made anew."""
        for k, frame in enumerate(self.arguments):
            inner = [leaf for _, entry in self.entries(frame) for leaf in entry.leaves]
            if any(isinstance(leaf, MutableMapping) for leaf in [*frame.leaves, *inner]) or any(
                isinstance(leaf, _MappingSlot) for leaf in inner
            ):
                return k
        return None


def same_value(left: object, right: object) -> bool:
    """Whether two values are built alike from the very same leaves."""
    left_leaves, left_spec = pytree.tree_flatten(left)
    right_leaves, right_spec = pytree.tree_flatten(right)
    return left_spec == right_spec and all(
        a is b for a, b in zip(left_leaves, right_leaves, strict=True)
    )
