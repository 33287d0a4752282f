"""What a failed run's remedy means for its settings: the changes that can be made for a person."""

from __future__ import annotations

import re
from dataclasses import dataclass

from poros.config import field_schemas

SAME_BITS = frozenset(
    {"vram_budget", "num_slots", "block_size", "enable_prefetch", "host_tier", "nf4_load_strategy"}
)
"""Settings that a run may go on with changed: they change no bit of its result."""

_SETTING = re.compile(r"\b([a-z][a-z0-9_]*): ([^\s,;()`]+)")
_NOT_OURS = ("output_dir", "dataset", "model")
"""A remedy names them with an example, which is nobody's."""


@dataclass(frozen=True, slots=True)
class WayOut:
    """The change that mends a run.

    Attributes:
        settings: ``key=value`` texts, as ``--set`` takes them.
        goes_on: The same run can go on with them; else they begin another run.
    """

    settings: tuple[str, ...] = ()
    goes_on: bool = True

    @property
    def words(self) -> str:
        """``vram_budget: min, num_slots: 2``."""
        return ", ".join(setting.replace("=", ": ", 1) for setting in self.settings)


def way_out(remediation: str) -> WayOut:
    """The settings that a remedy names with a value; without any, the run can go on as it is."""
    known = field_schemas()
    found = {
        key: value.rstrip(".")
        for key, value in _SETTING.findall(remediation)
        if key in known and key not in _NOT_OURS
    }
    return WayOut(
        tuple(f"{key}={value}" for key, value in found.items()),
        goes_on=all(key in SAME_BITS for key in found),
    )
