"""Names of linears that are to get an adapter, held against a model's tensors before it is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poros.errors import PorosConfigError

ALL = "all-linear"
"""PEFT's word for all of them."""

Targets = str | Sequence[str] | None


def named_targets(text: str) -> tuple[str, ...]:
    """The names in a text that has nothing but names, parted by commas, bars or spaces.

    A text is a pattern for a linear's whole path to PEFT; ``q_proj`` matches none.
    """
    names = text.replace(",", " ").replace("|", " ").split()
    plain = all(name.replace(".", "_").isidentifier() for name in names)
    return tuple(names) if plain else ()


def refuse_unknown_targets(targets: Targets, tensors: Iterable[str], known: Sequence[str]) -> None:
    """Refuse names that no linear of a model can have.

    What only the built model can tell, such as a pattern, passes.

    Args:
        targets: As the config's ``lora_target_modules``.
        tensors: Names of the checkpoint's tensors.
        known: The linears of the family's layers.

    Raises:
        PorosConfigError: Says what there is, and what was meant where that is plain.
    """
    if targets is None or targets == ALL:
        return
    is_text = isinstance(targets, str)
    names = named_targets(targets) if isinstance(targets, str) else tuple(targets)
    parts = {part for name in tensors for part in name.split(".")}
    unknown = [name for name in names if name.rpartition(".")[2] not in parts.union(known)]
    if unknown:
        there = [name for name in known if name in parts] or known
        raise _refused(
            f"no linear of this model is named {', '.join(unknown)}",
            f"leave it out to take all, or name some of {', '.join(there)}",
            None,
        )
    if is_text and names and "." not in names[0]:
        raise _refused(
            f"{targets!r} is a pattern for a linear's whole path, and matches none",
            f"write a list: lora_target_modules: [{', '.join(names)}]",
            list(names),
        )


def _refused(message: str, remediation: str, instead: list[str] | None) -> PorosConfigError:
    error = PorosConfigError(message, where="lora_target_modules", remediation=remediation)
    error.keys = ("lora_target_modules",)
    error.change = {"lora_target_modules": instead}
    return error
