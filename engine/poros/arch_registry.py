"""Which families run, and what is proved of each: Poros's own table, and what a user adds to it.

[Note: what certifies]
A family is `certified` by certified.json alone, and only if its record is the table's own. What a
user registers is `user_asserted`, whatever its fields say.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from poros import experts
from poros.arch_table import TABLE, WRAPPERS, ArchSpec
from poros.certified import Cell, Stack, certified_cells
from poros.errors import PorosArchNotValidatedError, PorosConfigError

VARIABLE = "POROS_USER_ASSERTED_ARCHS"
"""Families that the user vouches for: ``olmo,stablelm=model.layers``."""

CERTIFIED, EXPERIMENTAL, USER_ASSERTED = "certified", "experimental", "user_asserted"

_OWN = {spec.model_type: spec for spec in TABLE}
_WHOLES = {wrapper.model_type: wrapper for wrapper in WRAPPERS}
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*", re.IGNORECASE)
_FIELDS = {field.name: str(field.type) for field in fields(ArchSpec) if field.name != "model_type"}
# Not given: the probe (loading/probe.py) finds them in the model.
_UNKNOWN: dict[str, Any] = {"hf_class": "", "layers_path": "", "resident": (), "lora_targets": ()}

_registered: dict[str, ArchSpec] = {}


@dataclass(frozen=True)
class Labels:
    """What is proved, in three words, each ``certified`` or not.

    Attributes:
        architecture: Of the family: at some precision, on some stack.
        precision: Of the family at this precision, on some stack.
        stack: Of exactly this cell.
        artifacts: The folders of docs/validation behind the last word that is ``certified``.
    """

    architecture: str
    precision: str
    stack: str
    artifacts: tuple[str, ...] = ()


def architectures() -> dict[str, ArchSpec]:
    """Every family by its model type, the user's own among them."""
    return _OWN | _from_environment() | _registered


def validated_arch_types() -> frozenset[str]:
    """The families that a committed artifact stands behind; nothing that a user does adds one."""
    return frozenset(_OWN.keys() & {cell.model_type for cell in certified_cells()})


def user_asserted_arch_types() -> frozenset[str]:
    """The families that the user registered, in this process or by the environment."""
    return frozenset(_from_environment() | _registered)


def runnable_arch_types() -> frozenset[str]:
    """The families that Poros agrees to run: its table's, and the user's own."""
    return frozenset(architectures())


def register_architecture(model_type: str, *, notes: str = "", **given: Any) -> ArchSpec:
    """Vouch for a family, so that Poros runs it, as `user_asserted`.

    Args:
        model_type: What its config.json calls it.
        notes: For whoever reads the list later.
        given: Further fields of `ArchSpec`; what isn't given is found in the model itself.

    Returns:
        The record. A family of the table keeps its own, and takes no fields.

    Raises:
        PorosConfigError: A field that `ArchSpec` has not or of another type, fields for a family
            of the table, or a family that can't run.
    """
    where = f"register_architecture({model_type!r})"
    if _is_own(model_type, given, where=where):
        return _OWN[model_type]
    given["notes"] = notes
    checked = {name: _checked(name, value, where=where) for name, value in given.items()}
    spec = _asserted(model_type, checked, where=where)
    _registered[model_type] = spec
    return spec


def find_architecture(model_type: object) -> ArchSpec:
    """The family's record; a user's may lack what the probe has to find.

    Raises:
        PorosArchNotValidatedError: Nobody has such a family; the nearest names are told.
    """
    known = architectures()
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    if isinstance(model_type, str) and experts.is_mixture_type(model_type):
        raise PorosArchNotValidatedError(
            f"model_type {model_type!r} is {experts.REASON}",
            where="config.json",
            remediation=experts.MEND,
        )
    near = difflib.get_close_matches(str(model_type), known, n=3, cutoff=0.4)
    raise PorosArchNotValidatedError(
        f"no architecture entry for model_type {model_type!r}",
        where="config.json",
        remediation=(f"nearest: {', '.join(near)}; " if near else "")
        + f"known: {', '.join(known)}; {how_to_assert(model_type)}; "
        "adding one: docs/adding-a-model.md",
    )


def how_to_assert(model_type: object) -> str:
    """How a user runs a family that isn't in the table."""
    return (
        f"to run it as user_asserted, with no claim of exactness: {VARIABLE}={model_type}, or "
        f'poros.register_architecture("{model_type}")'
    )


def label(model_type: str) -> str:
    """What is proved of a family: ``certified``, ``experimental`` or ``user_asserted``."""
    return label_of(find_architecture(model_type))


def label_of(spec: ArchSpec) -> str:
    """What is proved of a record, which must be the table's own to be more than asserted."""
    if _OWN.get(spec.model_type) is not spec:
        return USER_ASSERTED
    return CERTIFIED if spec.model_type in validated_arch_types() else EXPERIMENTAL


def labels(model_type: str, precision: str, stack: Stack) -> Labels:
    """The three words for a family at a precision (``nf4``, ``bf16``, ``fp16``) on a stack."""
    family = label(model_type)
    if family != CERTIFIED:
        return Labels(family, EXPERIMENTAL, EXPERIMENTAL)
    of_family = [cell for cell in certified_cells() if cell.model_type == model_type]
    of_precision = [cell for cell in of_family if cell.precision == precision]
    of_stack = [cell for cell in of_precision if cell.stack == stack]

    def word(cells: list[Cell]) -> str:
        return CERTIFIED if cells else EXPERIMENTAL

    behind = of_stack or of_precision or of_family
    artifacts = sorted({artifact for cell in behind for artifact in cell.artifacts})
    return Labels(family, word(of_precision), word(of_stack), tuple(artifacts))


def _from_environment() -> dict[str, ArchSpec]:
    """The families that the variable names; one of the table stays as it is."""
    specs = {}
    for item in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        model_type, _, path = item.partition("=")
        given = {"layers_path": path.strip()} if path.strip() else {}
        if not _is_own(model_type.strip(), given, where=VARIABLE):
            spec = _asserted(model_type.strip(), given, where=VARIABLE)
            specs[spec.model_type] = spec
    return specs


def _is_own(model_type: str, given: dict[str, Any], *, where: str) -> bool:
    """Whether it is a family of the table.

    Raises:
        PorosConfigError: It is, and fields are given for it.
    """
    if model_type not in _OWN:
        return False
    if given:
        raise PorosConfigError(
            f"{model_type} is in Poros's own table, whose entry can't be replaced",
            where=where,
            remediation=f"leave out {', '.join(given)}; the family runs without being registered",
        )
    return True


def _asserted(model_type: str, given: dict[str, Any], *, where: str) -> ArchSpec:
    if not isinstance(model_type, str) or not _NAME.fullmatch(model_type):
        raise PorosConfigError(
            f"{model_type!r} is no model type",
            where=where,
            remediation="write it as config.json has it: model_type",
        )
    if model_type in _WHOLES:
        texts = ", ".join(_WHOLES[model_type].text_types)
        raise PorosConfigError(
            f"{model_type} is a multimodal model, of which Poros runs the text part ({texts})",
            where=where,
            remediation="leave it out; it runs without being registered",
        )
    if experts.is_mixture_type(model_type):
        raise PorosConfigError(
            f"{model_type} is {experts.REASON}", where=where, remediation=experts.MEND
        )
    return ArchSpec(model_type=model_type, **(_UNKNOWN | given))


def _checked(name: str, value: Any, *, where: str) -> Any:
    """The value as `ArchSpec` holds it: a list becomes a tuple, else only its own type will do."""
    if name not in _FIELDS:
        near = difflib.get_close_matches(name, _FIELDS, n=1)
        raise PorosConfigError(
            f"no field {name!r}",
            where=where,
            remediation=f"did you mean {near[0]}?" if near else f"one of {', '.join(_FIELDS)}",
        )
    value = _as_tuple(value)
    sound, words = _KINDS[_FIELDS[name]]
    if not sound(value):
        raise PorosConfigError(
            f"{name} is {value!r}, expected {words}",
            where=where,
            remediation="see ArchSpec in docs/adding-a-model.md",
        )
    return value


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value


def _are_texts(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) for text in value)


def _are_pairs(value: Any) -> bool:
    return isinstance(value, tuple) and all(_are_texts(pair) and len(pair) == 2 for pair in value)


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda value: isinstance(value, str), "a text"),
    "bool": (lambda value: isinstance(value, bool), "True or False"),
    "tuple[str, ...]": (_are_texts, "a list of texts"),
    "tuple[tuple[str, str], ...]": (_are_pairs, "a list of pairs of texts"),
}


VALIDATED_BLOCKWISE_ARCH_TYPES = validated_arch_types()
"""What `validated_arch_types` gives, as a constant."""
