"""The commands that need torch, as commands: exit codes, one line for a mistake, JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from poros.cli import cli
from poros.cli_guard import Guard
from tests.engine.export.adapters import write_adapter, write_base


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_adapter(folder / "adapter", write_base(folder / "base"))


def poros(*words: object) -> int:
    return Guard().run(cli, [str(word) for word in words], name="poros")


def test_export_tells_what_it_wrote(
    adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert poros("export", adapter, "-o", tmp_path / "a", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_merged"] == 6
    assert len(found["logits"]) == 3
    assert poros("export", adapter, "-o", tmp_path / "b", "--no-compare", "--dtype", "fp32") == 0
    shown = capsys.readouterr().out
    assert "6 merged tensors" in shown
    assert "float32" in shown
    assert poros("export", adapter, "-o", tmp_path / "c") == 0
    assert "the same next token in 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["export", "ADAPTER", "-o", "out", "--max-shard-size", "big"], 2, "is no size"),
        (["export", "ADAPTER"], 2, "Missing option '-o'"),
        (["export", "no-such", "-o", "out"], 2, "no folder, and no run"),
        (["export", "ADAPTER", "-o", "ADAPTER"], 7, "nothing is written over"),
        (["generate", "ADAPTER"], 2, "Missing option '-p'"),
        (["generate", "no-such", "-p", "x"], 2, "no folder, and no run"),
        (["chat", "no-such", "--vram-budget", "lots"], 2, "neither auto nor min"),
        (["chat", "ADAPTER", "--base", "/no/such"], 4, "no such folder"),
        (["chat", "ADAPTER", "--device", "tpu"], 2, "device"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str],
    code: int,
    said: str,
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(adapter, tmp_path / "adapter")
    given = [word.replace("ADAPTER", "adapter") for word in words]
    assert poros(*given) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
    assert len(shown.err.splitlines()) == 1
