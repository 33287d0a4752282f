import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poros.config import ALIASES, PorosConfig, field_schemas, json_schema, require_dataset
from poros.errors import PorosConfigError
from tests.engine.config_lines import lines_from


def refusal(**values: object) -> list[str]:
    with pytest.raises(PorosConfigError) as caught:
        PorosConfig(**values)
    return caught.value.lines()


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("model_name_or_path", "Qwen/Qwen2.5-7B"),
        ("quantization", "nf4"),
        ("torch_dtype", "bfloat16"),
        ("trust_remote_code", False),
        ("block_size", None),
        ("freeze_embeddings", True),
        ("freeze_lm_head", True),
        ("preserve_rng_state", True),
        ("blockwise_arch_check", "error"),
        ("lora_rank", 16),
        ("lora_alpha", 32),
        ("lora_dropout", 0.05),
        ("lora_target_modules", None),
        ("learning_rate", 2e-5),
        ("weight_decay", 0.01),
        ("max_grad_norm", 1.0),
        ("warmup_steps", 100),
        ("lr_scheduler", "cosine"),
        ("num_epochs", 1),
        ("per_device_batch_size", 1),
        ("gradient_accumulation_steps", 8),
        ("max_seq_length", 2048),
        ("seed", 42),
        ("nf4_load_strategy", "auto"),
        ("enable_prefetch", True),
        ("output_dir", "./poros_output"),
        ("save_steps", 500),
        ("logging_steps", 10),
    ],
)
def test_published_defaults_hold(key, default):
    assert getattr(PorosConfig(), key) == default


def test_block_size_null_means_one_layer():
    assert PorosConfig().layers_per_block == 1
    assert PorosConfig(block_size=4).layers_per_block == 4


def test_bf16_bitwise_is_another_name_of_bf16():
    assert PorosConfig(quantization="bf16_bitwise") == PorosConfig(quantization="bf16")


def test_an_fp16_base_computes_in_float16():
    assert PorosConfig(quantization="fp16").torch_dtype == "float16"


def test_a_config_cannot_be_changed():
    with pytest.raises(Exception, match="frozen"):
        PorosConfig().seed = 1


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"lora_rnk": 8}, "unknown key 'lora_rnk' -> did you mean lora_rank?"),
        ({"model": "x"}, "unknown key 'model' -> did you mean model_name_or_path?"),
        ({"batch_size": 4}, "did you mean per_device_batch_size?"),
        ({"lr": 1e-4}, "did you mean learning_rate?"),
        ({"Learning-Rate": 1e-4}, "did you mean learning_rate?"),
        ({"optimizer": "adamw"}, "unknown key 'optimizer' -> `poros schema` lists all keys"),
        ({"quantization": "nf5"}, 'nf4, bf16, fp16 or bf16_bitwise, not the text "nf5"'),
        ({"quantization": "nf5"}, "did you mean nf4?"),
        ({"learning_rate": "2e-4"}, "write 2e-4 without quotes"),
        ({"learning_rate": math.nan}, "learning_rate must be a number > 0, not NaN"),
        ({"learning_rate": math.inf}, "learning_rate must be a number > 0, not Infinity"),
        ({"packing": "true"}, "write true without quotes"),
        ({"packing": 1}, "packing must be true or false, not 1"),
        ({"lora_rank": True}, "lora_rank must be a whole number"),
        ({"lora_rank": 8.0}, "lora_rank must be a whole number"),
        ({"dataset": 12}, "put it in quotes if it is meant as text"),
        ({"gradient_accumulation_steps": 0}, "a whole number >= 1"),
        ({"num_slots": 1}, "a whole number >= 2"),
        ({"keep_checkpoints": 1}, "a whole number >= 2"),
        ({"device": "gpu"}, "device must be auto, cpu or cuda:0, cuda:1, ..."),
        ({"attn_implementation": "kernels-community/x"}, "must be sdpa or eager"),
        ({"lora_target_modules": []}, "a list of non-empty text"),
        ({"output_dir": ""}, "output_dir must be non-empty text"),
        ({"output_dir": "a\0b"}, "output_dir must be non-empty text"),
        ({"output_dir": "a\udcffb"}, "text that UTF-8 can write"),
        ({"seed": 2**32}, "seed must be a whole number >= 0 and < 4294967296"),
        ({"vram_budget": "12GiB"}, "write 12.8849 for 12GiB"),
        ({"vram_budget": "900 MB"}, "sizes are in GB (1e9 bytes): write 0.9 for 900 MB"),
        ({"vram_budget": "12"}, "write 12 without quotes"),
        ({"learning_rate": "2 MB"}, "`poros schema` describes every key"),
        ({"vram_budget": 0}, "vram_budget must be a number > 0 or auto or min"),
    ],
)
def test_a_wrong_value_says_what_is_wanted(values, part):
    (line,) = refusal(**values)
    assert part in line


@pytest.mark.parametrize(
    "values",
    [
        {"preserve_rng_state": False},
        {"quantization": "bf16", "torch_dtype": "float32"},
        {"quantization": "fp16", "torch_dtype": "bfloat16"},
        {"freeze_embeddings": False},
        {"freeze_lm_head": False},
        {"eval_steps": 10},
        {"packing": True, "attn_implementation": "eager"},
        {"quantization": "bf16", "nf4_cache": "/var/cache/nf4"},
        {"quantization": "bf16", "nf4_load_strategy": "gpu"},
        {"device": "cpu", "vram_budget": 8},
    ],
)
def test_a_contradiction_is_refused_with_the_way_out(values):
    (line,) = refusal(**values)
    assert " -> " in line


def test_all_problems_come_at_once():
    assert len(refusal(lora_rank=0, seed="x", packing=3, colour="red")) == 4
    assert len(refusal(freeze_embeddings=False, eval_steps=3)) == 2
    assert len(refusal(lora_rank=0, freeze_embeddings=False, eval_steps=3)) == 3
    # What has a part in another problem is not told twice.
    assert len(refusal(eval_steps=3, eval_dataset=7)) == 1
    assert len(refusal(eval_steps=3, eval_datset="held.jsonl")) == 1


def test_training_needs_a_dataset():
    with pytest.raises(PorosConfigError, match="dataset is missing"):
        require_dataset(PorosConfig())


def test_every_field_has_a_group_and_a_description():
    for key, schema in field_schemas().items():
        assert schema["group"], key
        assert schema["description"].endswith("."), key


def test_the_json_schema_is_json():
    schema = json.loads(json.dumps(json_schema(), allow_nan=False))
    assert schema["additionalProperties"] is False
    assert schema["properties"].keys() == PorosConfig.model_fields.keys() | ALIASES.keys()


wrong_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 1, 2, 3, 2**32, 10**9 + 1, 10**400, -(10**400)]),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.lists(st.one_of(st.text(max_size=3), st.integers()), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@settings(max_examples=400)
@given(st.sampled_from(sorted(PorosConfig.model_fields)), wrong_values)
def test_no_value_of_any_field_raises_anything_but_a_config_error(key, value):
    assert all(line.isprintable() for line in lines_from(lambda: PorosConfig(**{key: value})))


@pytest.mark.parametrize(
    "values",
    [
        {"lora_dropout": 0.1, "preserve_rng_state": False},
        {"quantization": "bf16", "torch_dtype": "float16"},
        {"freeze_embeddings": False},
        {"freeze_lm_head": False},
        {"eval_steps": 5},
        {"quantization": "bf16", "nf4_cache": "/there"},
        {"quantization": "bf16", "nf4_load_strategy": "gpu"},
        {"packing": True, "attn_implementation": "eager"},
        {"device": "cpu", "vram_budget": 4.0},
        {"lora_rank": 0},
        {"seed": 2**40},
        {"quantization": "nf5"},
        {"learning_rate": "1e-4"},
        {"learning_rate": -1.0},
        {"output_dir": ""},
    ],
)
def test_a_problem_carries_the_change_that_mends_it(values: dict[str, object]) -> None:
    with pytest.raises(PorosConfigError) as caught:
        PorosConfig(**values)
    assert caught.value.change is not None
    assert set(caught.value.keys) & set(values)
    PorosConfig(**(values | dict(caught.value.change)))


def test_the_nearest_value_is_the_one_that_was_probably_meant() -> None:
    with pytest.raises(PorosConfigError) as caught:
        PorosConfig(lora_rank=0, seed=2**40, quantization="nf5", learning_rate="1e-4")
    changes = [dict(problem.change or {}) for problem in caught.value.problems]
    assert {"lora_rank": 1} in changes
    assert {"quantization": "nf4"} in changes
    assert {"learning_rate": 1e-4} in changes
