"""The gate's report: a table of claims by cell, and what was measured beside them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from poros.measure.compare import CLAIMS
from poros.measure.family_report import family_table
from poros.measure.map_report import memory_map_lines
from poros.measure.plan import Cell, Plan
from poros.measure.records import ArmRecord
from poros.told_sizes import told_size

Say = Callable[[str], None]

_FEW = 3
"""So many claims that did not pass for one reason have a line each."""


def cell_record(cell: Cell) -> dict[str, Any]:
    """A cell without the paths of this machine."""
    record = asdict(cell)
    for key in ("base_folder", "streamed_folder", "adapter", "batches", "layers_path"):
        del record[key]
    return record


def measurements(plan: Plan, arms: Mapping[str, Mapping[str, ArmRecord]]) -> list[dict[str, Any]]:
    """What each arm measured at its end, with the median of its timed steps."""
    found = []
    for name, records in arms.items():
        for cell in plan.cells:
            arm = records.get(cell.name)
            if arm is not None and arm.end:
                step_s = arm.end.get("step_s") or []
                median_s = statistics.median(step_s) if step_s else None
                found.append({"arm": name, "cell": cell.name, "median_step_s": median_s} | arm.end)
    return found


def show(record: dict[str, Any], console: Console | None = None) -> None:
    """Print the verdicts; plain text when the output is no terminal."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console = Console(file=console.file, width=160, highlight=False, color_system=None)
    console.print(family_table(record) if record["target"] == "family" else _table(record))
    for line in _not_passed(record["verdicts"]):
        console.print(line, markup=False)
    for difference in record["differences"]:
        console.print(f"closer look: {difference}", markup=False)
    _show_mutants(record["mutants"], console)
    for line in (*timing_lines(record), *memory_map_lines(record["memory_maps"])):
        console.print(line, markup=False)
    for note in record["notes"]:
        console.print(note, markup=False)
    last_lines = {job["name"]: job["last_lines"].splitlines() for job in record["jobs"]}
    for name in record["failed_jobs"]:
        cause = "".join(f": {line}" for line in last_lines.get(name, [])[-1:])
        console.print(f"{name} failed, its record does not count{cause}", markup=False)
    console.print(last_line(record), markup=False)


def last_line(record: dict[str, Any]) -> str:
    """The whole answer: what was claimed, about how many cells, and what was not claimed."""
    words = "every claim PASS" if record["passed"] else "NOT PASSED"
    if record["not_claimed"]:
        why = "--quick: " if record["quick"] else ""
        words += f" ({why}{' and '.join(record['not_claimed'])} not claimed)"
    cells, staying = f"{len(record['cells'])} cells", len(staying_cells(record))
    if staying:
        cells += f", {staying} of them on the device all along"
    compared = sum(verdict["num_compared"] for verdict in record["verdicts"])
    return (
        f"{words}: {cells}, {compared} comparisons of bytes, "
        f"{record['duration_s']:.0f} s ({record['cpu_s']:.0f} s of processor time)"
    )


def staying_cells(record: dict[str, Any]) -> set[str]:
    """Cells whose blocks all had a slot: after the first pass nothing was streamed."""
    return {
        row["cell"]
        for row in record["measurements"]
        if row["arm"] == "streamed" and row["streaming_proof"]["stays"]
    }


def timing_lines(record: dict[str, Any]) -> list[str]:
    """Step times and memory, where they were measured."""
    lines = []
    for row in record["measurements"]:
        if row["median_step_s"] is not None:
            memory = row.get("peak_allocated_bytes")
            peak = f", allocator peak {told_size(memory)}" if memory else ""
            lines.append(f"{row['cell']} {row['arm']}: {row['median_step_s']:.4f} s/step{peak}")
    return lines


def _table(record: dict[str, Any]) -> Table:
    words: dict[str, dict[str, str]] = {}
    for verdict in record["verdicts"]:
        count = f"{verdict['word']} {verdict['num_compared']}/{verdict['num_expected']}"
        words.setdefault(verdict["cell"], {})[verdict["claim"]] = count
    staying = staying_cells(record)
    table = Table(box=None, pad_edge=False)
    for title in ("cell", "setting", *CLAIMS):
        table.add_column(title, overflow="fold")
    for cell in record["cells"]:
        row = [words.get(cell["name"], {}).get(claim, "-") for claim in CLAIMS]
        stays = ", stays on the device" if cell["name"] in staying else ""
        table.add_row(cell["name"], _setting(cell) + stays, *row)
    return table


def _setting(cell: dict[str, Any]) -> str:
    parts = [
        f"block {cell['block_size']}",
        f"slots {cell['num_slots']}",
        cell["batch_form"],
        f"acc {cell['accumulation']}",
        f"drop {cell['dropout']}",
        cell["dtype"] if cell["dtype"] != "bfloat16" else "",
        cell["attn_implementation"] if cell["attn_implementation"] != "sdpa" else "",
        "" if cell["prefetch"] else "no prefetch",
        "autocast" if cell["autocast"] else "",
        "cache" if cell["use_cache"] else "",
        "compiled" if cell["compile"] else "",
        "bf16 adapter" if cell["adapter_dtype"] == "bfloat16" else "",
        "ends on the host" if cell["head_on_host"] else "",
        f"{len(cell['resident'])} resident" if cell.get("resident") else "",
        _state_on_host(cell),
        "hidden states on the host" if cell["boundaries_on_host"] else "",
    ]
    return ", ".join(part for part in parts if part)


def _not_passed(verdicts: list[dict[str, Any]]) -> list[str]:
    """A line for each claim that did not pass, or one for many that have the same reason."""
    wrong = [verdict for verdict in verdicts if verdict["word"] != "PASS"]
    counts = Counter((v["word"], v["reason"]) for v in wrong if v["first_difference"] is None)
    alike = {key for key, count in counts.items() if count > _FEW}
    lines = [f"{counts[word, why]} claims {word}: {why}" for word, why in sorted(alike)]
    return lines + [_reason(v) for v in wrong if (v["word"], v["reason"]) not in alike]


def _state_on_host(cell: dict[str, Any]) -> str:
    if cell["adapters_on_host"]:
        return "adapters on the host"
    return "moments on the host" if cell["moments_on_host"] else ""


def _reason(verdict: dict[str, Any]) -> str:
    first = verdict["first_difference"]
    where = f" at step {first['step']}, {first['item']}" if first else ""
    return f"{verdict['word']} {verdict['claim']} of {verdict['cell']}: {verdict['reason']}{where}"


def _show_mutants(mutants: list[dict[str, Any]] | None, console: Console) -> None:
    if mutants is None:
        return
    for mutant in mutants:
        console.print(f"mutant {mutant['name']}: {_mutant_word(mutant)}", markup=False)
    console.print(mutants_line(mutants), markup=False)


def mutants_line(mutants: list[dict[str, Any]]) -> str:
    """How many went red, how many controls stayed equal, and how many could not be tried."""
    tried = [mutant for mutant in mutants if mutant["ok"] is not None]
    controls = [mutant for mutant in tried if _is_control(mutant)]
    equal = sum(control["ok"] for control in controls)
    red = sum(mutant["ok"] for mutant in tried) - equal
    line = (
        f"{red} of {len(tried) - len(controls)} mutants red where predicted,"
        f" {equal} of {len(controls)} controls equal"
    )
    left_out = len(mutants) - len(tried)
    return f"{line}, {left_out} not applicable" if left_out else line


def _mutant_word(mutant: dict[str, Any]) -> str:
    if mutant["ok"] is None:
        return str(mutant["found"])
    predicted = "equal, as predicted" if _is_control(mutant) else "red where predicted"
    return f"{predicted if mutant['ok'] else 'NOT AS PREDICTED'} ({mutant['found']})"


def _is_control(mutant: dict[str, Any]) -> bool:
    """Whether it keeps every protection on, so that nothing may differ."""
    return str(mutant["name"]).startswith("(control)")
