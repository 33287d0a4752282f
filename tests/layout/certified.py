"""engine/poros/certified.json and the families of docs/architecture-support.md, from the artifacts.

python tests/layout/certified.py --write   makes both anew

A cell of docs/validation/*/gate.json certifies if the whole gate passed on a CUDA device, the
claims B-fwd, B-bwd and D about this cell are PASS with all expected tensors compared, and the arm
is proved to have streamed, with more blocks than slots. Hashes of both arms, where they lie beside
it, must be equal. Runs on the CPU, compiled layers and families outside the table certify nothing.
"""

import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [] if str(ROOT / "engine") in sys.path else [str(ROOT / "engine")]

from poros.arch_table import TABLE, WRAPPERS, ArchSpec  # noqa: E402 - the path comes first
from poros.certified import Cell, Stack, minor  # noqa: E402

VALIDATION = ROOT / "docs" / "validation"
JSON = ROOT / "engine" / "poros" / "certified.json"
PAGE = ROOT / "docs" / "architecture-support.md"
CLAIMS = ("B-fwd", "B-bwd", "D")

_OWN = {spec.model_type for spec in TABLE}
# A multimodal type whose text part can be one family only counts as that family.
_TEXT_TYPE = {w.model_type: w.text_types[0] for w in WRAPPERS if len(w.text_types) == 1}


def cells(folder: Path = VALIDATION) -> list[Cell]:
    """Every proof, equal ones once with all their artifacts."""
    merged: dict[Cell, list[str]] = {}
    for path in sorted(folder.glob("*/gate.json")):
        record = json.loads(path.read_text("utf-8"))
        for cell in _cells_of(record) if _same_hashes(path.parent) else ():
            merged.setdefault(cell, []).append(path.parent.name)
    return [replace(cell, artifacts=tuple(merged[cell])) for cell in sorted(merged)]


def _cells_of(record: dict[str, Any]) -> Iterator[Cell]:
    surroundings, packages = record["environment"], record["environment"]["packages"]
    on_gpu = record["device"].startswith("cuda") and surroundings.get("compute_capability")
    if record["passed"] is not True or record.get("failed_jobs") or not on_gpu:
        return
    stack = Stack(
        torch=minor(packages["torch"]),
        transformers=minor(packages["transformers"]),
        bitsandbytes=packages["bitsandbytes"],
        compute_capability=surroundings["compute_capability"],
    )
    found = set()
    for cell in record["cells"]:
        family = _TEXT_TYPE.get(cell["model"], cell["model"])
        proved = _proves(record["verdicts"], cell["name"]) and _streamed(record, cell["name"])
        if family in _OWN and proved and not cell["compile"]:
            tiny = bool(cell.get("family")) or cell["name"].startswith("tiny")
            found.add(
                Cell(
                    model_type=family,
                    precision=cell.get("precision", "nf4"),
                    stack=stack,
                    sizes="tiny" if tiny else "real",
                    weights="checkpoint" if cell["name"] == "config" else "random",
                    exceptions=tuple(record.get("determinism_exceptions", ())),
                    artifacts=(),
                )
            )
    yield from sorted(found)


def _same_hashes(folder: Path) -> bool:
    """Whether no step's root differs between the two arms, as far as the artifact has both."""
    paths = [folder / f"hashes-{arm}.jsonl.gz" for arm in ("reference", "streamed")]
    if not all(path.is_file() for path in paths):
        return True
    left, right = ([_root(line) for line in _lines(path)] for path in paths)
    return left == right != []


def _lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines()


def _root(line: bytes) -> list[Any]:
    step = json.loads(line)
    return [step[key] for key in ("cell", "step", "root", "num_items")]


def _streamed(record: dict[str, Any], cell: str) -> bool:
    """Whether the cell's streamed arm brought blocks into slots that had held others."""
    proofs = [
        measured["streaming_proof"]
        for measured in record["measurements"]
        if (measured["arm"], measured["cell"]) == ("streamed", cell)
    ]
    return (
        len(proofs) == 1
        and proofs[0]["proved"]
        and proofs[0]["num_copies"] > proofs[0]["num_slots"]
    )


def _proves(verdicts: list[dict[str, Any]], cell: str) -> bool:
    about = [verdict for verdict in verdicts if verdict["cell"] == cell]
    return set(CLAIMS) <= {verdict["claim"] for verdict in about} and all(
        verdict["word"] == "PASS" and verdict["num_compared"] == verdict["num_expected"] > 0
        for verdict in about
    )


def json_text(found: list[Cell]) -> str:
    """The file's text."""
    return json.dumps({"cells": [asdict(cell) for cell in found]}, indent=1) + "\n"


def table_text(found: list[Cell]) -> str:
    """The page's table: a row for each family."""
    head = "| model type | class | LoRA by default on | proved | notes |\n|---|---|---|---|---|"
    return "\n".join([head, *(_row(spec, found) for spec in TABLE)])


def _row(spec: ArchSpec, found: list[Cell]) -> str:
    wholes = [w.model_type for w in WRAPPERS if spec.model_type in w.text_types]
    names = f"`{spec.model_type}`" + "".join(f", text part of `{whole}`" for whole in wholes)
    needs = f"needs transformers {spec.min_transformers}" if spec.min_transformers else ""
    notes = "; ".join(filter(None, (spec.notes, needs)))
    cells_of = [cell for cell in found if cell.model_type == spec.model_type]
    proved = "; ".join(dict.fromkeys(map(_proof, cells_of))) or "experimental"
    targets = ", ".join(spec.lora_targets)
    return f"| {names} | {spec.hf_class} | {targets} | {proved} | {notes} |"


def _proof(cell: Cell) -> str:
    links = ", ".join(f"[{name}](validation/{name}/gate.json)" for name in cell.artifacts)
    allowed = f", {', '.join(cell.exceptions)} excepted" if cell.exceptions else ""
    return (
        f"certified in {cell.precision} at {cell.sizes} sizes, {cell.weights} weights{allowed}: "
        f"{cell.stack} ({links})"
    )


def page_text(text: str, found: list[Cell]) -> str:
    """The page with its table between the two comments."""
    begin, end = "<!-- families -->\n", "<!-- /families -->"
    head, _, rest = text.partition(begin)
    _, found_end, tail = rest.partition(end)
    assert found_end, f"{PAGE} has no {end}"
    return f"{head}{begin}{table_text(found)}\n{end}{tail}"


if __name__ == "__main__" and "--write" in sys.argv:
    JSON.write_text(json_text(cells()))
    PAGE.write_text(page_text(PAGE.read_text(), cells()))
