"""`poros doctor` as a command, and the small commands beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poros import cli_doctor, doctor
from poros.cli_completion import SHELLS, script
from poros.doctor_rows import Row
from tests.engine.command_line import poros_here
from tests.engine.processor_time import quickest_s
from tests.engine.test_cli import poros


@pytest.fixture
def rows(monkeypatch):
    found = [Row("a", "ok", "fine", "good"), Row("b", "warn", "so\nso", "slow", "mend")]
    monkeypatch.setattr(doctor, "examine", lambda **_: iter(found))
    return found


def told(**options):
    defaults = {"as_json": False, "kernels": True, "timeout_s": 1.0, "output_dir": None}
    return cli_doctor.doctor(**defaults | options)


def test_warnings_do_not_fail(rows, capsys):
    assert told() == 0
    text = capsys.readouterr().out
    assert "so\\nso" in text
    assert "-> mend" in text
    assert text.endswith("1 ok, 1 warn. This machine can train.\n")


def test_a_bad_row_is_exit_code_1(rows, capsys):
    rows.append(Row("c", "bad", "broken", "no run"))
    assert told() == 1
    assert told(as_json=True) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["fit"] is False


def test_json_is_one_document_with_all_fields(rows, capsys):
    assert told(as_json=True) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["counts"] == {"ok": 1, "warn": 1}
    assert record["rows"][1] == {
        "id": "b", "state": "warn", "what": "so\nso", "meaning": "slow", "fix": "mend"
    }  # fmt: skip


def test_as_lines_each_row_is_told_for_itself_and_the_verdict_last(rows, capsys):
    assert told(json_lines=True) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["row", "row", "verdict"]
    assert lines[1]["id"] == "b"
    assert lines[2] == {"kind": "verdict", "fit": True, "counts": {"ok": 1, "warn": 1}}


def test_one_row_can_be_asked_for_and_a_name_of_none_is_told():
    found = json.loads(poros_here("doctor", "--json", "--row", "host_memory").stdout)
    assert [row["id"] for row in found["rows"]] == ["host_memory"]
    ended = poros_here("doctor", "--row", "host_memroy")
    assert ended.returncode == 2
    assert "no row host_memroy on this machine" in ended.stderr


@pytest.mark.alone
def test_the_real_command_without_torch_says_what_it_could_not_look_at():
    root = Path(__file__).parents[3]
    runner = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'bitsandbytes')))\n"
        "sys.argv = ['poros', 'doctor', '--json']\n"
        "from poros.cli import main; main()\n"
    )

    def command():
        return subprocess.run(
            [sys.executable, "-c", runner],
            capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": f"{root / 'engine'}"},
        )  # fmt: skip

    assert quickest_s(command, below_s=0.5) < 0.5
    states = {row["id"]: row for row in json.loads(command().stdout)["rows"]}
    assert states["bf16"]["state"] == "unknown"
    assert "torch is not installed" in states["nf4"]["what"]
    assert states["host_memory"]["state"] in ("ok", "warn")


def test_exit_codes_as_json():
    codes = json.loads(poros_here("help", "exit-codes", "--json").stdout)
    assert codes["0"] == "All went well."
    assert "13" in codes


def test_the_schema_takes_the_flag_of_the_others():
    assert poros_here("schema", "--json").stdout == poros_here("schema").stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_scripts_name_the_variable(shell):
    assert "_POROS_COMPLETE" in script(shell)


def test_a_shell_gets_the_words_that_fit():
    asked = {"COMP_WORDS": "poros runs ", "COMP_CWORD": "2", "_POROS_COMPLETE": "bash_complete"}
    words = [line.partition(",")[2] for line in poros(**asked).stdout.split()]
    assert words == ["compare", "list", "rm", "show"]
