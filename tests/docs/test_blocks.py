"""Every code block of the documents works, on a tiny model under the documents' names."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
from pathlib import Path
from unittest import mock

import click
import pytest
import torch
from ruamel.yaml import YAML

from poros import arch_registry
from poros.config_load import load_config
from tests.docs.pages import ROOT, CodeBlock, code_blocks, pages
from tests.docs.reader import ENVIRON, MODELS, quiet_stdin, run_python, run_shell
from tests.engine.command_line import poros_here
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.dropin.live import live_model
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.tiny_run import write_rows

PAGES = [page for page in pages() if code_blocks(page)]
EXAMPLES = ROOT / "docs" / "examples"
LANGUAGES = {"", "bash", "json", "python", "text", "yaml"}

NOT_RUN = {
    ("docs/architecture-support.md", "Qwen3_5ForCausalLM"): "a multimodal checkpoint of 27B; "
    "tests/engine/training/test_text_part_run.py opens a tiny one so",
    ("docs/architecture-support.md", "Gemma3ForCausalLM"): "as above",
}
"""Python blocks that are only compiled, by what they hold, and why."""


def _config_of_the_readme():
    [block] = [b for b in code_blocks("README.md") if b.text.startswith("# train.yaml")]
    return block.text


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with models, data and a run under the names that the pages use."""
    folder = tmp_path_factory.mktemp("reader")
    sizes = {"num_hidden_layers": 2, "vocab_size": 264, "max_position_embeddings": 32768}
    first = write_model(folder / MODELS[0], **sizes)
    tiny_tokenizer().save_pretrained(first)
    for name in MODELS[1:]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(first)
    write_rows(folder / "data.jsonl", 8)
    (folder / "train.yaml").write_text(_config_of_the_readme())
    (folder / "runs").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("POROS_CACHE", str(folder / "cache"))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        ended = poros_here("train", "train.yaml", **ENVIRON)
        assert ended.returncode == 0, ended.stderr
        yield folder


@pytest.fixture
def here(desk, tmp_path, monkeypatch):
    """A copy of the desk to work on; what Python and torch were set to comes back afterwards."""
    shutil.copytree(desk, tmp_path / "desk", symlinks=True)
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setattr(arch_registry, "_registered", dict(arch_registry._registered))
    strict, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    state = random.getstate()
    with mock.patch.dict(os.environ):
        yield tmp_path / "desk"
    torch.use_deterministic_algorithms(strict)
    torch.set_num_threads(threads)
    random.setstate(state)


def prepared(page):
    """What stands before a page's first block: a script that the page speaks of."""
    if page not in ("docs/drop-in.md", "docs/quickstart.md"):
        return {}
    return {"model": live_model(Path(MODELS[0]))}


def shorter(text):
    """The same with one step for two hundred."""
    return re.sub(r"\bsteps=\d+", "steps=1", text)


def reason_not_to_run(page, text):
    return next((why for (of, part), why in NOT_RUN.items() if of == page and part in text), None)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_works(page, here, monkeypatch):
    if page == "README.md":
        shutil.rmtree("runs")
        Path("train.yaml").unlink()
    monkeypatch.setattr(sys, "stdin", quiet_stdin())
    namespace = prepared(page)
    for block in code_blocks(page):
        assert block.language in LANGUAGES, block.place
        if block.language == "bash":
            run_shell(block)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            check_config(block.text, block.place)
        elif block.language == "python" and reason_not_to_run(page, block.text):
            compile(block.text, block.place, "exec")
        elif block.language == "python":
            run_python(shorter(block.text), block.place, namespace)


def check_config(text, place):
    """A config is valid; its first line may name the file that later blocks read."""
    first = text.partition("\n")[0]
    path = Path(first.removeprefix("# ") if first.endswith(".yaml") else "block.yaml")
    path.write_text(text)
    assert load_config(path).config, place


@pytest.mark.parametrize(
    "line",
    [
        "poros parity --demo --nonsense",
        "poros nonsense",
        "poros runs nonsense",
        "poros check path/to/nothing",
        "make nonsense",
        "python docs/nonsense.py",
        "nonsense",
    ],
)
def test_a_line_that_does_not_work_is_found(line, here):
    with pytest.raises((AssertionError, click.UsageError)):
        run_shell(CodeBlock("page.md", 1, "bash", line))


def test_every_block_that_is_not_run_is_there():
    texts = {page: [block.text for block in code_blocks(page)] for page, _ in NOT_RUN}
    lost = [(page, part) for page, part in NOT_RUN if not any(part in t for t in texts[page])]
    assert lost == []


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_script_runs_as_it_stands(script, here):
    run_python(shorter(script.read_text()), script.name, {"__name__": "__main__"})


@pytest.mark.parametrize("config", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_an_example_config_is_valid_and_was_measured_below_its_card(config, here):
    stand_in = f"model_name_or_path={MODELS[0]}"
    ended = poros_here("train", str(config), "--dry-run", "--set", stand_in)
    assert ended.returncode == 0, ended.stderr
    text = config.read_text()
    folder = text.partition("docs/validation/")[2].split()[0].rstrip(".,;")
    record = json.loads((ROOT / "docs" / "validation" / folder / "gate.json").read_text())
    values = YAML(typ="safe").load(text)
    # What was measured is the least; a card with room for more may keep blocks.
    assert values["vram_budget"] == "min" or "had vram_budget: min" in text
    needed = most_process_bytes(record)
    told = f"{needed / 1e9:.2f}"
    table = (ROOT / "docs" / "consumer-gpus.md").read_text().splitlines()
    assert f"{told} GB of the card" in text
    assert f"| {told} |" in next(row for row in table if f"[{config.name}]" in row)
    assert 1e9 < needed < float(config.stem.removeprefix("card-").removesuffix("gb")) * 1e9
    rows = (ROOT / "docs" / "validation" / "README.md").read_text().splitlines()
    row = next(row for row in rows if row.startswith(f"| `{folder}` |"))
    length = values["max_seq_length"]
    assert length == 512 or f"| {length:,} |" in row  # 512 stands above its table


def most_process_bytes(record):
    """The most that the driver counted for a streamed process, in the record's cells."""
    if isinstance(record, dict):
        own = [v for k, v in record.items() if k == "device_level_peak_bytes" and v]
        return max([*own, *(most_process_bytes(v) for v in record.values())], default=0)
    if isinstance(record, list):
        return max((most_process_bytes(v) for v in record), default=0)
    return 0
