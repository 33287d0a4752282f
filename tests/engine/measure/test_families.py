"""`poros parity --family` on the families with the most unusual layers, mutants and all."""

import json

import pytest
from rich.console import Console

from poros.cli import main
from poros.errors import PorosConfigError
from poros.measure import family_cells as cells
from poros.measure import report
from poros.measure.family_cells import family_cells
from poros.measure.family_models import tiny_models, too_old
from poros.measure.family_report import answer
from poros.measure.gate import record_of, run_gate
from poros.measure.request import Request
from poros.measure.side_mutants import SIDE_MUTANTS
from tests.engine.measure.in_process import in_this_process

pytestmark = pytest.mark.timeout(900)

HAS_GEMMA4 = not too_old(tiny_models("gemma4")[0])
FAMILIES = "qwen3_5,gemma4" if HAS_GEMMA4 else "qwen3_5,gemma3"


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("families"))
    request = Request(target="family", folder=folder, model=FAMILIES, num_steps=2)
    with in_this_process():
        return run_gate(request, mutants=HAS_GEMMA4, say=print)


def test_every_claim_about_every_family_passes(outcome):
    assert outcome.passed, [v for v in outcome.verdicts if v.word != "PASS"] + [outcome.jobs]
    assert outcome.not_claimed == []


def test_a_family_is_run_on_both_bases_in_every_form_that_it_can_take(outcome):
    named = {cell.name: cell for cell in outcome.plan.cells}
    second = FAMILIES.partition(",")[2]
    for name in (f"{second}/nf4/packing", "qwen3_5/nf4/plain"):
        assert (named[name].precision, named[name].block_size) == ("nf4", 3)
    for family in FAMILIES.split(","):
        dense = named[f"{family}/bf16/plain"]
        assert (dense.precision, dense.autocast, dense.block_size) == ("bf16", "bfloat16", 3)
        assert dense.streamed_folder.endswith("whole")
        assert dense.adapters_on_host
        assert dense.boundaries_on_host
        assert named[f"{family}/bf16/padding"].moments_on_host
        assert named[f"{family}/nf4/padding"].resume_at is not None
        runs_out = named[f"{family}/bf16/padding"].runs_out_at
        assert (runs_out is not None) == (family == cells.RUNS_OUT)
    for cell in outcome.plan.cells:
        assert cell.dropout > 0
        assert cell.accumulation == 2


def test_the_refusal_to_pack_stands_in_the_report(outcome):
    console = Console(record=True, width=200)
    record = record_of(outcome)
    report.show(record, console)
    assert "qwen3_5_text can't be packed" in outcome.plan.notes[0]
    assert record["notes"] == list(outcome.plan.notes)
    assert {"family", "precision"} <= record["cells"][0].keys()


@pytest.mark.skipif(not HAS_GEMMA4, reason="this transformers has no usable gemma4")
def test_a_cut_gradient_is_red_where_predicted_and_leaves_the_loss_equal(outcome):
    assert [mutant["name"] for mutant in outcome.mutants] == [m.name for m in SIDE_MUTANTS]
    assert [mutant for mutant in outcome.mutants if not mutant["ok"]] == []
    assert all(r"^loss\." in mutant.equal for mutant in SIDE_MUTANTS)


def test_a_line_a_family_adds_up_what_was_compared(outcome, capsys):
    record = record_of(outcome)
    report.show(record)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("qwen3_5 ")]
    assert "nf4 padding, nf4 plain, bf16 plain, bf16 padding" in line
    count = sum(
        v.num_compared for v in outcome.verdicts if v.claim == "D" and v.cell.startswith("qwen3_5/")
    )
    assert f"PASS {count}/{count}" in line


def test_a_failure_among_a_familys_cells_is_counted():
    verdicts = [
        {"word": word, "num_compared": 6, "num_expected": 6} for word in ("PASS", "FAIL", "PASS")
    ]
    assert answer(verdicts) == "2 PASS, 1 FAIL 18/18"
    assert answer([]) == "-"


def test_a_family_beyond_this_transformers_is_left_out_and_alone_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "too_old", lambda model: model.family == "gemma4")
    request = Request(target="family", folder=str(tmp_path), model="gemma4", num_steps=1)
    with pytest.raises(PorosConfigError, match="needs transformers"):
        family_cells(request)


def test_packing_that_is_not_refused_is_no_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "refuse_recurrent_packing", lambda *_, **__: None)
    request = Request(target="family", folder=str(tmp_path), model="qwen3_5", num_steps=1)
    with pytest.raises(Exception, match="packing is not refused"):
        family_cells(request)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--family", "lama"], 4, "nearest: llama"),
        (["--family", "llama", "--mutants"], 2, "hidden states"),
        (["--family", "llama", "--demo"], 2, "Give one of"),
        (["--family", "llama", "--seq-len", "8"], 2, "--seq-len goes with --shape only"),
        (["--demo", "--device", "cpu"], 2, "--device goes with --shape and --family only"),
    ],
)
def test_a_wrong_request_is_told_before_a_process_starts(
    arguments, code, words, capsys, monkeypatch
):
    monkeypatch.setattr("sys.argv", ["poros", "parity", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert words in capsys.readouterr().err


@pytest.mark.long  # the families lane of .ci/run is one too
def test_a_whole_request_through_the_command_line(tmp_path, capsys, monkeypatch):
    line = ["--family", "granite", "--steps", "2", "--quick", "--json", "-o", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["poros", "parity", *line])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "out" / "gate.json").read_text())
    assert record["passed"]
    assert {(c["family"], c["precision"]) for c in record["cells"]} == {
        ("granite", "nf4"), ("granite", "bf16"),
    }  # fmt: skip
