"""certified.json and the page's table are what the committed artifacts give, and only good ones."""

import copy
import gzip
import importlib.util
import json
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("certified", Path(__file__).parent / "certified.py")
certified = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(certified)

HINT = "run: python tests/layout/certified.py --write"
GOOD = json.loads((certified.VALIDATION / "h200-qwen2.5-7b" / "gate.json").read_text())


def test_certified_json_is_what_the_artifacts_give():
    assert certified.JSON.read_text() == certified.json_text(certified.cells()), HINT


def test_the_pages_table_is_current():
    text = certified.PAGE.read_text()
    assert text == certified.page_text(text, certified.cells()), HINT


def test_every_family_of_the_table_has_a_row():
    rows = certified.table_text([]).splitlines()[2:]
    assert len(rows) == len(certified.TABLE)
    assert all("| experimental |" in row for row in rows)


def of(tmp_path, **changes):
    """What an artifact gives, changed."""
    record = copy.deepcopy(GOOD) | changes
    (tmp_path / "a-run").mkdir(exist_ok=True)
    (tmp_path / "a-run" / "gate.json").write_text(json.dumps(record))
    return certified.cells(tmp_path)


def with_verdict(claim, **changes):
    return {"verdicts": [v | (changes if v["claim"] == claim else {}) for v in GOOD["verdicts"]]}


def with_cell(**changes):
    return {"cells": [cell | changes for cell in GOOD["cells"]]}


def with_proof(**changes):
    measured = copy.deepcopy(GOOD["measurements"])
    for row in measured:
        if row["arm"] == "streamed":
            row["streaming_proof"] |= changes
    return {"measurements": measured}


def without_gpu():
    keys = ("gpu", "compute_capability")
    return {"environment": {k: v for k, v in GOOD["environment"].items() if k not in keys}}


def test_a_good_artifact_certifies_its_cell_and_no_more(tmp_path):
    (cell,) = of(tmp_path)
    assert (cell.model_type, cell.precision, cell.sizes, cell.weights) == (
        "qwen2", "nf4", "real", "random",
    )  # fmt: skip
    assert str(cell.stack) == (
        "torch 2.11, transformers 5.17, bitsandbytes 0.50.2, compute capability 9.0"
    )
    assert cell.artifacts == ("a-run",)


@pytest.mark.parametrize(
    "changes",
    [
        {"passed": False},
        {"passed": "yes"},
        {"failed_jobs": ["streamed"]},
        {"device": "cpu"},
        without_gpu(),
        {"verdicts": []},
        {"verdicts": [v for v in GOOD["verdicts"] if v["claim"] != "D"]},
        *(with_verdict(claim, word="FAIL") for claim in certified.CLAIMS),
        *(with_verdict(claim, word="REFUSED") for claim in certified.CLAIMS),
        *(with_verdict(claim, num_compared=0, num_expected=0) for claim in certified.CLAIMS),
        *(with_verdict(claim, num_compared=1) for claim in certified.CLAIMS),
        *(with_verdict(claim, cell="another") for claim in certified.CLAIMS),
        # a second verdict, that takes the first one's place or that it would take
        {"verdicts": [*GOOD["verdicts"], GOOD["verdicts"][0] | {"word": "FAIL"}]},
        {"verdicts": [GOOD["verdicts"][0] | {"word": "FAIL"}, *GOOD["verdicts"]]},
        {"measurements": []},
        {"measurements": GOOD["measurements"] * 2},
        with_proof(proved=False),
        with_proof(num_copies=2),  # two blocks, which stay in their slots
        with_cell(compile=True),
        with_cell(model="olmo"),
        with_cell(model="mistral3"),
    ],
)
def test_an_artifact_that_proves_nothing_certifies_nothing(tmp_path, changes):
    assert of(tmp_path, **changes) == []


@pytest.mark.parametrize(
    ("edit", "num_cells"),
    [
        (lambda steps: None, 1),
        (lambda steps: steps[-1].update(root="0"), 0),
        (lambda steps: steps[-1].update(num_items=1), 0),
        (lambda steps: steps.pop(), 0),
        (lambda steps: steps.clear(), 0),
    ],
)
def test_hashes_beside_an_artifact_must_be_those_of_equal_arms(tmp_path, edit, num_cells):
    assert len(of(tmp_path)) == 1
    for arm in ("reference", "streamed"):
        name = f"hashes-{arm}.jsonl.gz"
        good = certified.VALIDATION / "h200-qwen2.5-7b" / name
        steps = [json.loads(line) for line in gzip.decompress(good.read_bytes()).splitlines()]
        if arm == "streamed":
            edit(steps)
        with gzip.open(tmp_path / "a-run" / name, "wt") as file:
            file.writelines(json.dumps(step) + "\n" for step in steps)
    assert len(certified.cells(tmp_path)) == num_cells


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        (with_cell(precision="bf16"), "precision", "bf16"),
        (with_cell(model="gemma3"), "model_type", "gemma3_text"),
        (with_cell(model="gemma4_text"), "model_type", "gemma4_text"),
        (with_cell(family="gemma4", model="gemma4_text"), "sizes", "tiny"),
        ({"determinism_exceptions": ["cumsum"]}, "exceptions", ("cumsum",)),
    ],
)
def test_what_an_artifact_was_about_stands_in_its_cell(tmp_path, changes, field, value):
    (cell,) = of(tmp_path, **changes)
    assert getattr(cell, field) == value
    row = next(r for r in certified.table_text([cell]).splitlines() if "certified in" in r)
    assert "[a-run](validation/a-run/gate.json)" in row
    assert cell.model_type in row


def test_the_file_ships_beside_the_code():
    assert certified.JSON.parent.name == "poros"
    assert (certified.JSON.parent / "certified.py").exists()
