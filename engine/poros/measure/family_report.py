"""The gate's table for families: a line each, since every family has the same few cells."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table

from poros.measure.compare import CLAIMS


def family_table(record: dict[str, Any]) -> Table:
    """A line a family: its cells, and under each claim the words and what was compared.

    Args:
        record: The gate's whole record.
    """
    table = Table(box=None, pad_edge=False)
    for title in ("family", "cells", *CLAIMS):
        table.add_column(title, overflow="fold")
    for family in dict.fromkeys(cell["family"] for cell in record["cells"]):
        cells = [cell for cell in record["cells"] if cell["family"] == family]
        names = {cell["name"] for cell in cells}
        verdicts = [verdict for verdict in record["verdicts"] if verdict["cell"] in names]
        answers = [answer([v for v in verdicts if v["claim"] == claim]) for claim in CLAIMS]
        table.add_row(family, _ways(family, cells), *answers)
    return table


def answer(verdicts: list[dict[str, Any]]) -> str:
    """The verdicts of one claim in one line, as ``PASS 24/24``."""
    if not verdicts:
        return "-"
    words = Counter(verdict["word"] for verdict in verdicts)
    said = [word if len(words) == 1 else f"{count} {word}" for word, count in words.items()]
    compared, expected = (
        sum(verdict[key] for verdict in verdicts) for key in ("num_compared", "num_expected")
    )
    return f"{', '.join(said)} {compared}/{expected}"


def _ways(family: str, cells: list[dict[str, Any]]) -> str:
    """How often which precision and form, as ``nf4 padding, bf16 plain x2``."""
    ways = Counter(
        " ".join(cell["name"].removeprefix(f"{family}/").split("/")[:2]) for cell in cells
    )
    return ", ".join(way if count == 1 else f"{way} x{count}" for way, count in ways.items())
