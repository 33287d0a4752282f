"""What a load takes of the host: the blocks, the ends, and little beside them at any moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.seeded_source import SeededSource, write_checkpoint
from poros.memory_plan import MemoryPlan
from poros.streaming.block import Block
from poros.training.host_ends import take_ends
from tests.engine.loading.tiny_models import CPU, tiny_config, write_model

LARGE = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3, "head_dim": 64,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 12_000,
    "tie_word_embeddings": False,
}  # fmt: skip
"""A file of 150 MB: 50 million parameters in layers, 25 million in embeddings and head."""

NOISE_BYTES = 20 * 10**6

SCRIPT = """
import json, sys, torch
from pathlib import Path
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.training.host_ends import take_ends
from poros.memory_plan import MemoryPlan

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

folder, cache, quantization = sys.argv[1:]
torch.set_num_threads(1)
load = lambda folder, **more: load_base_model(
    SafetensorsSource(Path(folder)), device=torch.device("cpu"), emit=lambda _: None, **more
)
load(sys.argv[1] + "-small", quantization=quantization)  # the libraries' own first use
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
base = load(folder, quantization=quantization, cache=Path(cache))
ends = take_ends(base, MemoryPlan(head_on_host=True, embeddings_on_host=True), torch.device("cpu"))
held = sum(block.num_bytes for block in base.blocks) + ends.num_bytes
print(json.dumps({"held": held, "peak": status("VmHWM") - before, "cached": base.from_cache}))
"""


def loaded(folder: Path, cache: Path, quantization: str) -> dict:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(cache), quantization],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "engine:.", "OMP_NUM_THREADS": "1", "POROS_CACHE": str(cache / "user")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "model"
    write_checkpoint(SeededSource(tiny_config(**LARGE), 1), folder, device=CPU)
    write_model(folder.with_name("model-small"))
    assert sum(p.stat().st_size for p in folder.iterdir()) > 145 * 10**6
    return folder


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_load_holds_nothing_twice(large, tmp_path):
    first = loaded(large, tmp_path / "cache", "nf4")
    again = loaded(large, tmp_path / "cache", "nf4")
    dense = loaded(large, tmp_path / "cache", "bf16")
    assert [run["cached"] for run in (first, again, dense)] == [False, True, False]
    assert first["held"] == again["held"] > 70 * 10**6
    assert dense["held"] > 145 * 10**6
    # Bytes go from the files to where they stay; neither mapped files nor copies add up.
    assert again["peak"] < again["held"] + NOISE_BYTES, again
    assert dense["peak"] < dense["held"] + NOISE_BYTES, dense


def test_the_head_stays_where_the_load_put_it(tmp_path):
    for tied in (False, True):
        folder = write_model(tmp_path / str(tied), tie_word_embeddings=tied)
        base = load_base_model(
            SafetensorsSource(folder), device=CPU, cache=None, emit=lambda _: None
        )
        head, embeddings = base.model.lm_head, base.model.model.embed_tokens
        places = head.weight.data_ptr(), embeddings.weight.data_ptr()
        assert (places[0] == places[1]) == tied
        ends = take_ends(base, MemoryPlan(head_on_host=True, embeddings_on_host=True), CPU)
        assert isinstance(ends.block, Block)
        assert ends.block.host.data_ptr() == places[0]
        [embedding] = ends.embeddings.values()
        assert embedding.weight.data_ptr() == places[1]
        assert torch.count_nonzero(ends.block.host) > 0
