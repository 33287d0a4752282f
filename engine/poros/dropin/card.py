"""The report card of a prepared model: what it is, and what is claimed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from poros.arch_registry import CERTIFIED, EXPERIMENTAL, labels
from poros.certified import this_stack
from poros.dropin.anatomy import Anatomy

_UNKNOWN = "unvalidated"


@dataclass(frozen=True)
class Card:
    """The card's lines, by name.

    Attributes:
        rows: In order.
        notes: What was changed beside the layers.
    """

    rows: dict[str, str]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The card as it is printed."""
        lines = [f"{name:>13}  {value}" for name, value in self.rows.items()]
        return "\n".join(["Poros prepared model", *lines, *(f"{'':15}{n}" for n in self.notes)])


def make_card(
    anatomy: Anatomy, *, block_size: int, deterministic: bool, notes: tuple[str, ...]
) -> Card:
    """Say what is proved of a model as it is prepared."""
    model_type, precision = anatomy.spec.model_type, anatomy.precision
    found = labels(model_type, precision, this_stack()) if anatomy.accepted else None
    whole = "" if anatomy.is_text else f" (of {anatomy.base.config.model_type}, the text part)"
    of_precision = found.precision if found else EXPERIMENTAL
    words = [found.architecture, found.precision, found.stack] if found else [_UNKNOWN]
    if not anatomy.is_text:
        words.append(EXPERIMENTAL)
    adapter = _adapter(anatomy.outer, of_precision)
    words += [EXPERIMENTAL] if EXPERIMENTAL in adapter else []
    rows = {
        "model": anatomy.name,
        "model_type": f"{model_type}{whole}",
        "architecture": words[0],
        "adapter": adapter,
        "precision": precision.upper() if precision == "nf4" else precision,
        "stack": found.stack if found else EXPERIMENTAL,
        "block_size": str(block_size),
        "guarantee": _guarantee(words, precision, deterministic=deterministic),
    }
    return Card(rows, notes)


def _adapter(outer: Any, of_precision: str) -> str:
    configs = getattr(outer, "peft_config", None)
    if not isinstance(configs, dict) or not configs:
        return "none"
    kinds = []
    for config in configs.values():
        kind = str(getattr(config.peft_type, "value", config.peft_type)).lower()
        extras = [name for name in ("use_dora", "use_rslora") if getattr(config, name, False)]
        plain = kind == "lora" and not extras
        shown = "+".join([kind, *(name.removeprefix("use_") for name in extras)])
        kinds.append(f"{shown} ({of_precision if plain else EXPERIMENTAL})")
    return ", ".join(dict.fromkeys(kinds))


def _guarantee(words: list[str], precision: str, *, deterministic: bool) -> str:
    if not deterministic:
        return "none: determinism is left to you"
    if words[0] == _UNKNOWN:
        return "none: the architecture is not validated"
    name = precision.upper() if precision == "nf4" else precision
    if all(word == CERTIFIED for word in words):
        return f"official bitwise path ({name}, deterministic)"
    return f"experimental ({name}, deterministic): the same code, not proved on this cell"
