"""leaderboard.json is what the committed artifacts give."""

import importlib.util
import json
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location(
    "leaderboard", Path(__file__).parent / "leaderboard.py"
)
leaderboard = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(leaderboard)


def test_the_file_is_what_the_artifacts_give():
    hint = "run: python tests/layout/leaderboard.py --write"
    assert leaderboard.JSON.read_text() == leaderboard.json_text(), hint


def test_every_row_knows_what_it_was_asked():
    rows = leaderboard.rows()
    assert [row.artifact for row in rows if row.seq_len is None] == []
    assert {row.verdict for row in rows} == {"reference", "equal"}
    assert len(rows) >= 36


def test_what_is_said_for_old_records_is_about_records_that_are_there():
    names = {path.parent.name for path in leaderboard.VALIDATION.glob("*/gate.json")}
    assert set(leaderboard.ASKED) <= names
    for name in leaderboard.ASKED:
        record = json.loads((leaderboard.VALIDATION / name / "gate.json").read_text())
        assert "request" not in record
        assert record["cells"][0]["name"].startswith(leaderboard.ASKED[name]["model"])
