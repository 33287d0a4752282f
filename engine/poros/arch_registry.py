"""Which families run, and what is known of each."""

from __future__ import annotations

import difflib

from poros.arch_table import TABLE, ArchSpec
from poros.errors import PorosArchNotValidatedError


def architectures() -> dict[str, ArchSpec]:
    """Every family, by its model type."""
    return {spec.model_type: spec for spec in TABLE}


def label(model_type: str) -> str:
    """What is proved of a family: ``certified`` or ``experimental``."""
    find_architecture(model_type)
    return "experimental"


def find_architecture(model_type: object) -> ArchSpec:
    """The family's record.

    Raises:
        PorosArchNotValidatedError: The table has no such family; the nearest names are told.
    """
    known = architectures()
    if isinstance(model_type, str) and model_type in known:
        return known[model_type]
    near = difflib.get_close_matches(str(model_type), known, n=3, cutoff=0.4)
    raise PorosArchNotValidatedError(
        f"no architecture entry for model_type {model_type!r}",
        where="config.json",
        remediation=(f"nearest: {', '.join(near)}; " if near else "")
        + f"known: {', '.join(known)}; adding one: docs/adding-a-model.md",
    )
