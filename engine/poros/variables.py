"""The environment's POROS_* variables: which of them nobody reads, and what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

PREFIX = "POROS_"
"""Before a setting's name in capitals."""
OTHERS = frozenset(
    {"POROS_FAILPOINT", "POROS_USER_ASSERTED_ARCHS", "POROS_CACHE", "POROS_ASCII", "POROS_COMPLETE"}
)
"""Those that are no setting's."""
_ALIKE = 0.85


def unread(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that nobody reads, each with the one that was meant; empty: none is alike."""
    names = sorted(n for n in environ if n.startswith(PREFIX) and n not in OTHERS)
    if not names:
        return {}  # and the settings need not be read
    from poros.config import ALIASES, field_schemas

    known = {PREFIX + key.upper() for key in (*field_schemas(), *ALIASES)} | OTHERS
    found = {}
    for name in names:
        if name.upper() not in known:
            alike = difflib.get_close_matches(name.removeprefix(PREFIX), _keys(known), 1, _ALIKE)
            found[name] = PREFIX + alike[0] if alike else ""
    return found


def _keys(names: set[str]) -> list[str]:
    return sorted(name.removeprefix(PREFIX) for name in names)
