"""`poros leaderboard`: rows of the gate's artifacts, side by side, and of nothing else."""

import copy
import json
from pathlib import Path

import pytest

from poros.cli import cli
from poros.cli_guard import Guard
from poros.leaderboard import grouped, local_rows, rows_of, shipped_rows
from tests.engine.test_runs import make

ROOT = Path(__file__).parents[2]
GOOD = json.loads((ROOT / "docs/validation/h200-qwen2.5-7b/gate.json").read_text())


def poros(*words) -> int:
    return Guard().run(cli, [str(word) for word in words], name="poros")


def changed(**changes):
    return copy.deepcopy(GOOD) | changes


def artifact(folder, record=GOOD):
    folder.mkdir(parents=True)
    text = record if isinstance(record, str) else json.dumps(record)
    (folder / "gate.json").write_text(text)
    return folder


def test_an_artifact_gives_the_stock_run_and_ours():
    stock, ours = rows_of(GOOD, "a")
    assert (stock.method, stock.verdict, stock.step_s) == (
        "stock, resident", "reference", 0.85870276899999,
    )  # fmt: skip
    assert (ours.method, ours.verdict, ours.num_compared) == ("Poros", "equal", 78_550)
    assert (stock.peak_bytes, ours.peak_bytes) == (12_373_339_136, 4_180_274_176)
    assert ours.host_bytes == 5_224_943_616
    assert ours.seq_len is None


def test_a_request_says_length_batch_and_cap_of_ours_alone():
    asked = {"model": "qwen", "seq_len": 512, "batch_size": 2, "cap_bytes": 9, "num_layers": 4}
    stock, ours = rows_of(changed(request=asked), "a")
    assert (stock.cap_bytes, ours.cap_bytes) == (None, 9)
    assert ours.setting == stock.setting == ("qwen", 4, 512, 2, 2, "NVIDIA H200")
    assert ours.tokens_per_s == pytest.approx(512 * 2 * 2 / 1.2813, rel=1e-4)


def verdicts(claim, **change):
    return {"verdicts": [v | (change if v["claim"] == claim else {}) for v in GOOD["verdicts"]]}


def with_proof(proved):
    measured = copy.deepcopy(GOOD["measurements"])
    measured[1]["streaming_proof"]["proved"] = proved
    return {"measurements": measured}


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        (verdicts("D", word="FAIL"), "differs"),
        (verdicts("D", word="REFUSED"), "unproved"),
        (verdicts("B-bwd", num_compared=1), "unproved"),
        (verdicts("B-bwd", num_compared=0, num_expected=0), "unproved"),
        ({"verdicts": []}, "unproved"),
        ({"failed_jobs": ["streamed"]}, "unproved"),
        (with_proof(False), "unproved"),
        (with_proof("yes"), "unproved"),
    ],
)
def test_equal_is_said_of_complete_proofs_alone(changes, verdict):
    assert rows_of(changed(**changes), "a")[1].verdict == verdict


EVERYTHING = {f"{name}_on_host": True for name in ("head", "embeddings", "moments", "adapters")}


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ({"head_on_host": True}, "Poros, head on the host"),
        (EVERYTHING, "Poros, all on the host"),
        ({"resident": [0, 5]}, "Poros, 2 blocks resident"),
    ],
)
def test_a_method_says_where_things_lie(cell, words):
    assert rows_of(changed(cells=[GOOD["cells"][0] | cell]), "a")[1].method == words


def test_several_cells_give_the_highest_memory_and_no_time():
    second = GOOD["cells"][0] | {"name": "second"}
    measured = copy.deepcopy(GOOD["measurements"])
    more = [row | {"cell": "second", "peak_allocated_bytes": 10**11} for row in measured]
    more_verdicts = [v | {"cell": "second"} for v in GOOD["verdicts"]]
    record = changed(
        cells=[*GOOD["cells"], second],
        measurements=measured + more,
        verdicts=GOOD["verdicts"] + more_verdicts,
    )
    ours = rows_of(record, "a")[1]
    assert (ours.num_cells, ours.peak_bytes, ours.step_s) == (2, 10**11, None)
    assert (ours.verdict, ours.num_compared) == ("equal", 2 * 78_550)


def test_rows_of_one_setting_stand_together_least_memory_first():
    groups = grouped(shipped_rows())
    assert all(len({row.setting for row in group}) == 1 for group in groups)
    assert len({group[0].setting for group in groups}) == len(groups)
    for group in groups:
        assert [r.peak_bytes for r in group] == sorted(r.peak_bytes for r in group)


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("{", "is no record of poros parity"),
        ("[]", "is no record of poros parity"),
        ('{"cells": [], "measurements": []}', "is no record of poros parity"),
        ("[" * 100_000, "is no record of poros parity"),
        (json.dumps(changed(measurements=[])), "measured neither memory nor time"),
    ],
    ids=["cut off", "list", "empty", "deep", "unmeasured"],
)
def test_what_is_no_artifact_is_named_and_left_out(tmp_path, text, remark):
    artifact(tmp_path / "bad", text)
    artifact(tmp_path / "good")
    rows, remarks = local_rows([tmp_path])
    assert [row.artifact for row in rows] == ["good", "good"]
    assert remarks == [f"{tmp_path}/bad/gate.json: {remark}"]


def test_a_folder_without_artifacts_is_one_line(tmp_path, capsys):
    assert poros("leaderboard", tmp_path) == 2
    assert "no gate.json and no run, in it" in capsys.readouterr().err
    assert poros("leaderboard", tmp_path / "nowhere") == 2
    assert "no such folder" in capsys.readouterr().err


def test_names_in_an_artifact_drive_no_terminal(tmp_path, capsys):
    asked = {"model": "\x1b[2J", "seq_len": 8}
    artifact(tmp_path / "a", changed(request=asked))
    assert poros("leaderboard", tmp_path) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"\x1b[2J, 2 micro-batches of 1 x 8 tokens a step, NVIDIA H200" in out


def test_own_and_shipped_rows_as_json(tmp_path, capsys):
    artifact(tmp_path / "mine")
    assert poros("leaderboard", tmp_path, "--json") == 0
    assert {row["artifact"] for row in json.loads(capsys.readouterr().out)} == {"mine"}
    assert poros("leaderboard", tmp_path, "--shipped", "--model", "7B", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"mine", "h200-memory-qwen2.5-7b"} <= {row["artifact"] for row in rows}
    assert all("7b" in row["model"] for row in rows)
    assert poros("leaderboard", "--model", "none such") == 0
    assert capsys.readouterr().out == "Nothing to compare.\n"


def test_a_run_s_own_folder_is_a_row_that_is_compared_with_nothing(tmp_path, capsys):
    settings = {"max_seq_length": 64, "gradient_accumulation_steps": 2, "vram_budget": 6.0}
    (tmp_path / "runs").mkdir()
    make(tmp_path / "runs" / "a", **settings)
    artifact(tmp_path / "runs" / "gate")
    assert poros("leaderboard", tmp_path / "runs", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    [row] = [row for row in rows if row["artifact"] == "a"]
    assert len(rows) == 3
    assert (row["verdict"], row["num_compared"], row["num_steps"]) == ("uncompared", 0, 3)
    assert (row["model"], row["seq_len"], row["accumulation"]) == ("m", 64, 2)
    # Of the tokens that there were, not of full rows.
    assert (row["step_s"], row["tokens_per_s"]) == (0.5, 20.0)
    assert row["cap_bytes"] == 6_000_000_000
    assert poros("leaderboard", tmp_path / "runs" / "a") == 0
    assert "uncompared" in capsys.readouterr().out


def test_a_run_without_a_step_is_left_out_with_its_reason(tmp_path, capsys):
    make(tmp_path / "a", losses=())
    assert poros("leaderboard", tmp_path / "a") == 0
    told = capsys.readouterr()
    assert "no step was made" in told.err
    assert told.out == "Nothing to compare.\n"
