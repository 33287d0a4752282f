"""What an export takes of the host: no more than a shard read, a shard written and one layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from poros.export.merge import Merged
from poros.export.shards import plan_shards, write_shards
from poros.loading.tensor_writer import Shape
from tests.engine.data.tiny_tokenizers import tiny_tokenizer

SIZES = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 32_000,
    "tie_word_embeddings": False,
}  # fmt: skip
"""2.2 GB in bfloat16: 120 MB a layer."""

SCRIPT = """
import json, sys
from pathlib import Path
import torch
import poros.export.export as module
torch.set_num_threads(1)
def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
adapter, base, output, size = sys.argv[1:]
done = module.export(
    adapter, Path(output), base=base, max_shard_size=size, emit=lambda event: None
)
print(json.dumps({"peak": status("VmHWM") - before, "files": done.num_files,
                  "same": [c.same_next_token for c in done.logits]}))
"""


def write_large(folder: Path, shard_bytes: int) -> int:
    """A base of random weights in files of a size; the bytes of its largest layer."""
    config = LlamaConfig(**SIZES, dtype="bfloat16", architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    shapes = {n: Shape(t.dtype, tuple(t.shape)) for n, t in model.state_dict().items()}
    tensors = [Merged(name, name, name, shape) for name, shape in shapes.items()]
    folder.mkdir()
    config.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)

    def noise(tensor: Merged) -> list[torch.Tensor]:
        flat = torch.empty(tensor.shape.shape, dtype=torch.bfloat16)
        return [flat.fill_(1.0) if flat.dim() == 1 else flat.normal_(std=0.02)]

    write_shards(plan_shards(tensors, shard_bytes), folder, noise, lambda num_bytes: None)
    return sum(s.num_bytes for n, s in shapes.items() if n.startswith("model.layers.0."))


def write_adapter(folder: Path) -> None:
    """Random adapters on all linears, without their base in memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), dtype=torch.bfloat16)
        chosen = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = get_peft_model(model, chosen)
    state = {
        name: torch.randn(p.shape) * 0.01
        for name, p in adapted.named_parameters()
        if p.requires_grad
    }
    adapted.save_pretrained(folder, state_dict=state)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("shard_bytes", [250 * 10**6, 10**9])
def test_the_peak_is_below_two_shards_and_a_layer(shard_bytes: int, tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    layer_bytes = write_large(base, shard_bytes)
    write_adapter(adapter)
    largest_in = max(file.stat().st_size for file in base.glob("*.safetensors"))
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(adapter), str(base), str(tmp_path / "out"),
         str(shard_bytes)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "engine:.", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    largest_out = max(file.stat().st_size for file in (tmp_path / "out").glob("*.safetensors"))
    assert found["files"] > 2
    assert found["same"] == [True] * 3
    assert found["peak"] < 1.3 * (largest_in + largest_out + layer_bytes), found
    print(found, largest_in, largest_out, layer_bytes)
