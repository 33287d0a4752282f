"""Methods side by side: memory, time and proof of the gate's runs, from their artifacts.

An artifact is a folder with the `gate.json` of `poros parity -o`, or that of a run. Those that ship
with Poros are in leaderboard.json, made from docs/validation by tests/layout/leaderboard.py. Each
record of the gate gives two rows, the stock run and Poros', of the highest memory over its cells;
one that measured nothing gives none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from poros.errors import PorosConfigError, escape_control
from poros.leaderboard_row import (
    DIFFERS,
    EQUAL,
    ON_HOST,
    STOCK,
    UNPROVED,
    Row,
    stack,
    streamed_method,
    whole,
)
from poros.leaderboard_runs import run_rows
from poros.os_errors import why
from poros.report_facts import number
from poros.run_folder import read_run

CLAIMS = ("B-fwd", "B-bwd", "D")

_FILE = "leaderboard.json"
_RECORD = "gate.json"
_MAX_BYTES = 64_000_000


def shipped_rows() -> list[Row]:
    """The rows that this version of Poros ships with."""
    text = Path(__file__).with_name(_FILE).read_text("utf-8")
    return [Row(**row) for row in json.loads(text)["rows"]]


def local_rows(folders: Iterable[Path]) -> tuple[list[Row], list[str]]:
    """The rows of all artifacts in folders, and what to say of those that have none.

    Args:
        folders: Each has a gate.json, or is a run's, or has such folders in it.

    Raises:
        PorosConfigError: A folder is not there, or has no artifact at all.
    """
    rows: list[Row] = []
    remarks: list[str] = []
    for folder in folders:
        here = _artifacts(folder)
        if not here:
            raise PorosConfigError(
                "no gate.json and no run, in it or in its folders"
                if folder.is_dir()
                else "no such folder",
                where=escape_control(str(folder)),
                remediation="poros parity -o FOLDER writes the one, poros train the other",
            )
        for path in here:
            found, remark = _read(path) if path.name == _RECORD else run_rows(path)
            rows += found
            remarks += [f"{path}: {remark}"] if remark else []
    return rows, remarks


def _artifacts(folder: Path) -> list[Path]:
    """Records of the gate and folders of runs: the folder itself, and those directly in it."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    places = [folder, *inside]
    records = [path / _RECORD for path in places if (path / _RECORD).is_file()]
    return records + [path for path in places if read_run(path) is not None]


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one setting together, the least memory first; small models and rows first."""
    by_setting: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, []).append(row)
    groups = [sorted(group, key=_by_memory) for group in by_setting.values()]
    return sorted(groups, key=lambda group: _by_setting(group[0]))


def rows_of(record: Mapping[str, Any], artifact: str) -> list[Row]:
    """An artifact's rows: the stock run's and the streamed one's; none if nothing was measured.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: It is no gate's record.
    """
    cells, measured = record["cells"], record["measurements"]
    rows = []
    for arm in ("reference", "streamed"):
        of_arm = [row for row in measured if row["arm"] == arm]
        row = _row(record, artifact, cells, of_arm, streamed=arm == "streamed")
        if row.step_s is not None or row.peak_bytes is not None:
            rows.append(row)
    return rows


def as_record(row: Row) -> dict[str, Any]:
    """The row in plain values, for JSON."""
    told = asdict(row) | {"tokens_per_s": row.tokens_per_s and round(row.tokens_per_s, 1)}
    del told["told_tokens_per_s"]
    return told


def _read(path: Path) -> tuple[list[Row], str]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return [], "too large for a gate's record"
        record = json.loads(path.read_bytes())
        rows = rows_of(record, path.absolute().parent.name)
    except OSError as error:
        return [], f"can't be read ({why(error)})"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return [], "is no record of poros parity"
    return rows, "" if rows else "measured neither memory nor time"


def _row(
    record: Mapping[str, Any],
    artifact: str,
    cells: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    *,
    streamed: bool,
) -> Row:
    request, first = record.get("request") or {}, cells[0]
    # One setting's time says nothing of another's.
    step_s = number(measured[0].get("median_step_s")) if len(measured) == 1 else None
    verdict, num_compared = _judged(record, measured) if streamed else (STOCK, 0)
    cap_bytes = whole(request.get("cap_bytes"))
    return Row(
        model=str(request.get("model") or first["name"]),
        num_layers=whole(request.get("num_layers")),
        seq_len=whole(request.get("seq_len")),
        batch_size=whole(request.get("batch_size")) or 1,
        accumulation=whole(first["accumulation"]) or 1,
        device=str(record["environment"].get("gpu") or record["device"]),
        method=_streamed_method(first, measured) if streamed else _stock_method(first),
        num_cells=len(cells),
        num_steps=whole(first["num_steps"]) or 0,
        step_s=step_s,
        peak_bytes=_highest(measured, "peak_allocated_bytes"),
        reserved_bytes=_highest(measured, "peak_reserved_bytes"),
        process_bytes=_highest(measured, "device_level_peak_bytes"),
        host_bytes=_highest(measured, "host_rss_peak_bytes", "host_rss_bytes"),
        cap_bytes=cap_bytes if streamed else None,
        verdict=verdict,
        num_compared=num_compared,
        stack=stack(record["environment"]["packages"]),
        artifact=artifact,
    )


def _judged(record: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    about = [verdict for verdict in record["verdicts"] if verdict["claim"] in CLAIMS]
    num_compared = sum(whole(verdict["num_compared"]) or 0 for verdict in about)
    if any(verdict["word"] == "FAIL" for verdict in about):
        return DIFFERS, num_compared
    judged = {(verdict["cell"], verdict["claim"]) for verdict in about if _passes(verdict)}
    wanted = {(cell["name"], claim) for cell in record["cells"] for claim in CLAIMS}
    streams = {row["cell"] for row in measured if row["streaming_proof"]["proved"] is True}
    proved = judged == wanted and streams == {cell["name"] for cell in record["cells"]}
    return (EQUAL if proved and not record.get("failed_jobs") else UNPROVED), num_compared


def _passes(verdict: Mapping[str, Any]) -> bool:
    compared = whole(verdict["num_compared"])
    return verdict["word"] == "PASS" and compared == verdict["num_expected"] and bool(compared)


def _stock_method(cell: Mapping[str, Any]) -> str:
    return "stock, resident" + (", recomputing" if cell["gradient_checkpointing"] else "")


def _streamed_method(cell: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> str:
    on_host = [name for name in ON_HOST if cell.get(f"{name}_on_host")]
    from_disk = any(row.get("host_tier") == "disk" for row in measured)
    return streamed_method(on_host, len(cell.get("resident") or ()), from_disk=from_disk)


def _highest(measured: Sequence[Mapping[str, Any]], *names: str) -> int | None:
    """The first of the names that was measured at all."""
    for name in names:
        found = [value for row in measured if (value := whole(row.get(name)))]
        if found:
            return max(found)
    return None


def _by_memory(row: Row) -> tuple[Any, ...]:
    return (row.peak_bytes or 10**18, row.step_s or 1e9, row.method, row.artifact)


def _by_setting(row: Row) -> tuple[Any, ...]:
    size = re.search(r"(\d+(?:\.\d+)?)[bB]\b", row.model)
    return (row.num_layers is not None, float(size[1]) if size else 1e9, row.model,
            row.seq_len or 0, row.accumulation, row.device, row.artifact)  # fmt: skip
