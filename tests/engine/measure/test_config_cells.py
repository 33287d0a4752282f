import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from poros.config import PorosConfig
from poros.errors import PorosConfigError, PorosHubError, PorosOOMError
from poros.loading.nf4_cache import MANIFEST
from poros.measure.cell_files import make_cell
from poros.measure.config_cells import config_cells
from poros.measure.family_models import tiny_models, write_model
from poros.measure.gate import run_gate, run_parity
from poros.measure.reference import open_model
from poros.measure.request import Request
from poros.measure.streamed_arm import open_streamed
from tests.engine.measure.conftest import NUM_LAYERS

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("no_processes")]


@pytest.fixture(scope="module")
def settings(tiny_llama, tmp_path_factory):
    """A model with a tokenizer, and data."""
    folder = tmp_path_factory.mktemp("config")
    model = folder / "model"
    model.mkdir()
    for path in tiny_llama.iterdir():
        (model / path.name).symlink_to(path)
    words = Tokenizer(models.WordLevel({f"w{k}": k for k in range(100)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w7", eos_token="w1").save_pretrained(
        model
    )
    rows = [" ".join(f"w{(7 * i + k) % 90 + 8}" for k in range(6 + i % 4)) for i in range(12)]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return {
        "model_name_or_path": str(model), "dataset": str(data), "device": "cpu",
        "per_device_batch_size": 2, "gradient_accumulation_steps": 1, "learning_rate": 1e-3,
        "max_seq_length": 16, "train_on": "everything", "warmup_steps": 0, "lora_rank": 4,
    }  # fmt: skip


def asked(settings, folder: Path, **changes) -> Request:
    config = PorosConfig(**settings | changes).model_dump(mode="json")
    return Request(target="config", folder=str(folder), config=config, num_steps=2, quick=True)


def test_what_may_change_bits_and_what_may_not_reaches_the_cell(settings, tmp_path):
    changes = {
        "attn_implementation": "eager", "torch_dtype": "float32", "enable_prefetch": False,
        "preserve_rng_state": False, "lora_dropout": 0.0, "vram_budget": "min", "num_slots": 4,
    }  # fmt: skip
    cell = config_cells(asked(settings, tmp_path, **changes))[0]
    assert (cell.attn_implementation, cell.dtype) == ("eager", "float32")
    assert (cell.prefetch, cell.preserve_rng, cell.num_slots) == (False, False, 2)
    assert (cell.moments_on_host, cell.adapters_on_host) == (True, True)
    config = json.loads((Path(cell.base_folder) / "config.json").read_text())
    assert config["quantization_config"]["bnb_4bit_compute_dtype"] == "float32"


def test_a_budget_in_gb_is_the_plan_that_fits_it(settings, tmp_path):
    cells = [
        config_cells(asked(settings, tmp_path, vram_budget=budget, device="auto"))[0]
        for budget in ("auto", 1.0)
    ]
    assert [len(cell.resident) for cell in cells] == [0, NUM_LAYERS]
    assert not any(cell.head_on_host for cell in cells)
    with pytest.raises(PorosOOMError, match="the smallest plan needs"):
        config_cells(asked(settings, tmp_path, vram_budget=0.001, device="auto"))


def test_both_arms_follow_a_configs_settings(settings, tmp_path):
    changes = {"attn_implementation": "eager", "torch_dtype": "float32", "enable_prefetch": False}
    outcome = run_gate(asked(settings, tmp_path, **changes), mutants=False, say=print)
    assert outcome.passed, (outcome.verdicts, outcome.jobs)
    plan, cell = outcome.plan, outcome.plan.cells[0]
    streamed = open_streamed(plan, cell, torch.device("cpu"))
    resident, _ = open_model({"folder": plan.folder}, vars(cell), torch.device("cpu"))
    assert not streamed.manager._prefetch
    for model in (streamed.model, resident):
        assert model.get_input_embeddings().weight.dtype == torch.float32
        assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("quantization", ["bf16", pytest.param("fp16", marks=pytest.mark.long)])
def test_a_dense_base_is_read_by_both_arms_from_the_models_own_folder(
    settings, tmp_path, quantization
):
    outcome = run_gate(
        asked(settings, tmp_path, quantization=quantization), mutants=False, say=print
    )
    cell = outcome.plan.cells[0]
    assert (cell.precision, cell.base_folder) == (quantization, settings["model_name_or_path"])
    assert cell.dtype == {"bf16": "bfloat16", "fp16": "float16"}[quantization]
    assert outcome.passed, (outcome.verdicts, outcome.jobs)


def test_a_model_that_is_nf4_already_is_read_by_both_arms_from_its_own_folder(settings, tmp_path):
    packed = Path(config_cells(asked(settings, tmp_path / "first"))[0].base_folder)
    folder = tmp_path / "packed"
    shutil.copytree(packed, folder)
    (folder / MANIFEST).unlink()
    request = asked(settings, tmp_path / "second", model_name_or_path=str(folder))
    outcome = run_gate(request, mutants=False, say=print)
    assert outcome.plan.cells[0].base_folder == str(folder)
    assert outcome.passed, (outcome.verdicts, outcome.jobs)


def test_the_dense_text_part_of_a_multimodal_checkpoint_is_refused(settings, tmp_path):
    (model,) = tiny_models("gemma3")
    whole, _ = write_model(model, tmp_path / "gemma3")
    for path in Path(settings["model_name_or_path"]).glob("tokenizer*"):
        shutil.copy(path, whole)
    changes = {"model_name_or_path": str(whole), "quantization": "bf16"}
    with pytest.raises(PorosConfigError, match="multimodal"):
        config_cells(asked(settings, tmp_path, **changes))


def test_another_loaders_bytes_are_refused_before_anything_runs(settings):
    with pytest.raises(PorosConfigError) as refused:
        run_parity(PorosConfig(**settings | {"nf4_load_strategy": "gpu"}))
    assert refused.value.where == "nf4_load_strategy"


def test_what_ends_the_preparation_ends_the_gate_with_its_own_kind(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    request = asked(settings, tmp_path / "asked", model_name_or_path="nobody/nothing")
    with pytest.raises(PorosHubError, match="nobody/nothing") as refused:
        run_gate(request, mutants=False, say=print)
    assert refused.value.exit_code == 5
    assert refused.value.remediation


def test_another_adapter_lies_in_another_folder(tiny_plan, tiny_llama):
    config = json.loads((tiny_llama / "config.json").read_text())
    request = Request(target="demo", folder=str(tiny_plan.folder))
    batches = tiny_plan.folder / tiny_plan.cells[0].batches
    common = {"rank": 2, "alpha": 4, "targets": ["q_proj"], "dropout": 0.0}
    variants = [{}, {"rank": 3}, {"alpha": 5}, {"targets": ["k_proj"]}, {"dropout": 0.1}]
    found = {}
    for changes in variants:
        wanted = common | changes
        cell = make_cell(request, "c", Path("nf4"), config, batches, **wanted)
        folder = tiny_plan.folder / cell.adapter
        written = json.loads((folder / "adapter_config.json").read_text())
        assert (written["r"], written["lora_alpha"]) == (wanted["rank"], wanted["alpha"])
        found[cell.adapter] = written["target_modules"]
    assert len(found) == len(variants)
