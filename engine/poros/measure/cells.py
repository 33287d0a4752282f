"""The settings that the gate tries: a covering array in which every pair of levels meets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Levels = Mapping[str, Sequence[Any]]
Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]

MODELS = ("llama", "qwen2", "mistral", "phi3")

CPU_LEVELS: dict[str, tuple[Any, ...]] = {
    "model": MODELS,
    "block_size": (1, 2, 5, 30),
    "batch_form": ("padding", "packing", "none"),
    "dropout": (0.05, 0.0),
    "accumulation": (2, 1),
    "autocast": (None, "bfloat16"),
    "use_cache": (True, False),
    "num_slots": (2, 3),
    "adapter_dtype": ("float32", "bfloat16"),
    "compile": (False, True),
}


COMPILED = {"model": ("llama",), "block_size": (1, 2, 5), "use_cache": (False,)}
"""With what compiling every layer may meet: it takes long, and a KV cache costs one compilation
for each layer instead of one for all."""


def compiled_cells_are_few(row: Mapping[str, Any]) -> bool:
    """Whether a row, or a part of one, is allowed: compiled cells only where `COMPILED` says."""
    if not row.get("compile", False):
        return True
    return all(row[factor] in levels for factor, levels in COMPILED.items() if factor in row)


def coverable_pairs(levels: Levels, allowed: Callable[[Row], bool]) -> set[Pair]:
    """Every pair of levels of two factors that the constraint lets meet."""
    pairs = set()
    for one, other in itertools.combinations(levels, 2):
        for a, b in itertools.product(levels[one], levels[other]):
            if allowed({one: a, other: b}):
                pairs.add(((one, a), (other, b)))
    return pairs


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    """The pairs that a row covers."""
    return set(itertools.combinations(row.items(), 2))


def covering_array(levels: Levels, allowed: Callable[[Row], bool]) -> list[Row]:
    """Few rows that together cover every pair that may meet; the same rows every time.

    Greedy: each row starts from the first pair not covered yet and takes, factor by factor, the
    level that covers most of the rest.
    """
    missing = coverable_pairs(levels, allowed)
    order = [pair for pair in _in_order(levels, allowed) if pair in missing]
    rows: list[Row] = []
    while missing:
        start = next(pair for pair in order if pair in missing)
        row = _fill(dict(start), levels, allowed, missing)
        missing -= pairs_of(row)
        rows.append(row)
    return rows


def _in_order(levels: Levels, allowed: Callable[[Row], bool]) -> Iterator[Pair]:
    for one, other in itertools.combinations(levels, 2):
        for a, b in itertools.product(levels[one], levels[other]):
            if allowed({one: a, other: b}):
                yield ((one, a), (other, b))


def _fill(row: Row, levels: Levels, allowed: Callable[[Row], bool], missing: set[Pair]) -> Row:
    for factor in levels:
        if factor in row:
            continue
        candidates = [level for level in levels[factor] if allowed(row | {factor: level})]
        row[factor] = max(
            candidates, key=lambda level: len(_new_pairs(row, factor, level, levels) & missing)
        )
    return {factor: row[factor] for factor in levels}


def _new_pairs(row: Row, factor: str, level: Any, levels: Levels) -> set[Pair]:
    new = {factor: level}
    factors = list(levels)
    return {
        tuple(sorted(((name, value), *new.items()), key=lambda item: factors.index(item[0])))  # type: ignore[misc]  # two items each
        for name, value in row.items()
    }


TIERS: tuple[tuple[str, Row], ...] = (
    ("disk", {"accumulation": 2, "compile": False}),
    ("pageable", {"num_slots": 3, "compile": False}),
)
"""Tiers that a row has its blocks in, and which: the first like this, never the first of all."""


def with_tiers(rows: Sequence[Row]) -> list[Row]:
    """The rows, some of them with blocks in files, or in memory that is never registered."""
    found = [dict(row) for row in rows]
    for tier, wanted in TIERS:
        fitting = (r for r in found[1:] if r.items() >= wanted.items() and "host_tier" not in r)
        # Few layers a block: more visits.
        row = min(fitting, key=lambda row: int(row.get("block_size", 1)), default=None)
        if row is not None:
            row["host_tier"] = tier
    return found


ON_HOST: tuple[tuple[str, Row], ...] = (
    ("adapters_on_host", {"adapter_dtype": "bfloat16", "accumulation": 2, "compile": False}),
    ("adapters_on_host", {"autocast": "bfloat16", "accumulation": 2, "compile": False}),
    ("adapters_on_host", {"accumulation": 2, "compile": True}),
    ("moments_on_host", {"adapter_dtype": "float32", "compile": False}),
    ("boundaries_on_host", {"accumulation": 2, "autocast": "bfloat16"}),
    ("boundaries_on_host", {"compile": True}),
)
"""What some rows have on the host, and which rows: the first like this that has nothing there."""


def with_state_on_host(rows: Sequence[Row]) -> list[Row]:
    """The rows, some of them with optimizer state on the host; never the first one."""
    found = [dict(row) for row in rows]
    for key, wanted in ON_HOST:
        fitting = (
            row
            for row in found[1:]
            if row.items() >= wanted.items() and not row.keys() & dict(ON_HOST).keys()
        )
        # Few layers a block: blocks that all have a slot would prove less.
        row = min(fitting, key=lambda row: int(row.get("block_size", 1)), default=None)
        if row is not None:
            row[key] = True
    return found
