"""What this machine's card was measured to do, kept by `poros doctor` for `poros check`.

It is only ever a guess for sizing: a file that can't be read, or says nonsense, is as good as none.
"""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

from poros import atomic
from poros.errors import PorosStorageError
from poros.memory_planner import Rates
from poros.user_cache import user_cache

FILE = "rates.json"


def keep_rates(card: str, rates: Rates) -> None:
    """Remember a card's rates; that the cache can't be written stops nothing."""
    path = user_cache() / FILE
    record = {name: kept for name, kept in _read().items() if name != card}
    record[card] = [rates.link_bytes_per_s, rates.operations_per_s]
    with contextlib.suppress(OSError, PorosStorageError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_file(path, json.dumps(record) + "\n")


def kept_rates(card: str | None = None) -> tuple[str, Rates] | None:
    """A card's rates, or those of the card that was measured last; None: none is known."""
    record = _read()
    name = card if card is not None else next(reversed(record), None)
    if name is None or name not in record:
        return None
    value = record[name]
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_rate, value)):
        return None
    return name, Rates(float(value[0]), float(value[1]))


def _read() -> dict[str, Any]:
    try:
        record = json.loads((user_cache() / FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_rate(value: object) -> bool:
    return type(value) is float and math.isfinite(value) and value > 0
