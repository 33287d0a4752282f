"""Commands that need no torch: each works where there is none, and starts within half a second."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers
from tests.engine.processor_time import quickest_s
from tests.engine.test_runs import make

ROOT = Path(__file__).parents[2]
PROBE = """
import sys
sys.modules.update(dict.fromkeys(('torch', 'transformers', 'peft', 'bitsandbytes')))
from poros.cli import cli
from poros.cli_guard import Guard
code = Guard().run(cli, sys.argv[1:], name='poros')
print(*sorted({'pydantic', 'textual'} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
COMMANDS = {
    "check": ("check model --vram 8 --seq-len 512", "trains  yes", ""),
    "init": ("init - -m model -d rows.jsonl", "learning_rate", "pydantic"),
    "schema": ("schema", "learning_rate", "pydantic"),
    "report": ("report run", "run/report.html", ""),
    "leaderboard": ("leaderboard", "NVIDIA H200", ""),
    "runs": ("runs show run", "finished", ""),
    "cache": ("cache ls", "", ""),
}
"""What is asked, what is answered, and which of the larger libraries it may take."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("here")
    write_headers(folder / "model", QWEN_7B, qwen_tensors(QWEN_7B))
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        make(folder / "run")
    return folder


@pytest.mark.alone
@pytest.mark.parametrize(("words", "answer", "libraries"), COMMANDS.values(), ids=COMMANDS)
def test_it_works_without_torch_and_starts_in_half_a_second(folder, words, answer, libraries):
    own = {"XDG_STATE_HOME": "state", "POROS_CACHE": "cache", "HF_HUB_OFFLINE": "1"}
    environ = os.environ | {"PYTHONPATH": str(ROOT / "engine")} | own

    def command():
        done = subprocess.run(
            [sys.executable, "-c", PROBE, *words.split()],
            capture_output=True, text=True, check=False, cwd=folder, env=environ,
        )  # fmt: skip
        assert (done.returncode, done.stderr.strip()) == (0, libraries)
        assert answer in done.stdout

    assert quickest_s(command, below_s=0.5) < 0.5
