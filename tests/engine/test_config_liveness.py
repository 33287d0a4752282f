"""No field of the config may be read by nothing: each names the test that sees its effect."""

from pathlib import Path

import pytest

from poros.config import PorosConfig

ROOT = Path(__file__).parents[2]
CONFIG = "tests/engine/test_config.py"
CONTRADICTION = f"{CONFIG}::test_a_contradiction_is_refused_with_the_way_out"

# None: the code that reads the field is not there yet.
EFFECT_SEEN_BY: dict[str, str | None] = {
    "model_name_or_path": None,
    "quantization": None,
    "torch_dtype": None,
    "trust_remote_code": None,
    "attn_implementation": None,
    "blockwise_arch_check": None,
    "block_size": f"{CONFIG}::test_block_size_null_means_one_layer",
    "num_slots": None,
    "enable_prefetch": None,
    "vram_budget": None,
    "preserve_rng_state": None,
    "freeze_embeddings": CONTRADICTION,
    "freeze_lm_head": CONTRADICTION,
    "nf4_load_strategy": None,
    "nf4_cache": None,
    "lora_rank": None,
    "lora_alpha": None,
    "lora_dropout": None,
    "lora_target_modules": None,
    "adapter_dtype": None,
    "learning_rate": None,
    "weight_decay": None,
    "max_grad_norm": None,
    "warmup_steps": None,
    "lr_scheduler": None,
    "num_epochs": None,
    "max_steps": None,
    "per_device_batch_size": None,
    "gradient_accumulation_steps": None,
    "autocast": None,
    "seed": None,
    "device": None,
    "cpu_threads": None,
    "dataset": f"{CONFIG}::test_training_needs_a_dataset",
    "eval_dataset": None,
    "max_seq_length": None,
    "train_on": None,
    "overlong": None,
    "packing": None,
    "on_bad_line": None,
    "output_dir": None,
    "save_steps": None,
    "keep_checkpoints": None,
    "logging_steps": None,
    "eval_steps": None,
    "samples": None,
    "sample_tokens": None,
    "resume": None,
    "allow_inexact_resume": None,
    "survive_hangup": None,
}


def test_every_field_is_listed():
    assert EFFECT_SEEN_BY.keys() == PorosConfig.model_fields.keys()


@pytest.mark.parametrize("key", [key for key, test in EFFECT_SEEN_BY.items() if test])
def test_the_test_that_sees_a_field_exists(key):
    file, _, name = str(EFFECT_SEEN_BY[key]).partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
