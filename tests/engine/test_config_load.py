import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poros.config import PorosConfig, json_schema
from poros.config_load import dump_config, load_config
from poros.config_yaml import parse_document
from poros.errors import PorosConfigError
from tests.engine.config_lines import lines_from


@pytest.fixture
def write(tmp_path):
    def write_file(text: str):
        path = tmp_path / "train.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def refusal(*arguments: object, **named: object) -> list[str]:
    with pytest.raises(PorosConfigError) as caught:
        load_config(*arguments, **{"environ": {}} | named)
    return caught.value.lines()


def test_flags_beat_variables_beat_the_file_beat_defaults(write):
    path = write("seed: 1\nlora_rank: 2\nlora_alpha: 3\noutput_dir: a\n")
    loaded = load_config(
        path,
        environ={"POROS_LORA_RANK": "20", "POROS_LORA_ALPHA": "30", "POROS_OUTPUT_DIR": "b"},
        settings=["lora_alpha=300", "output_dir=c"],
        flags={"output_dir": "d", "device": None},
    )
    config = loaded.config
    assert (config.seed, config.lora_rank, config.lora_alpha) == (1, 20, 300)
    assert config.output_dir == "d"
    assert loaded.origins["seed"] == f"{path}:1:1"
    assert loaded.origins["lora_rank"] == "POROS_LORA_RANK"
    assert loaded.origins["lora_alpha"] == "--set lora_alpha"
    assert loaded.origins["output_dir"] == "--output-dir"
    assert loaded.origins["packing"] == "default"


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ({}, "train.yaml:1:1"),
        ({"environ": {"POROS_ARCH_CHECK": "warn"}}, "POROS_ARCH_CHECK"),
        ({"environ": {"POROS_BLOCKWISE_ARCH_CHECK": "warn"}}, "POROS_BLOCKWISE_ARCH_CHECK"),
        ({"settings": ["arch_check=warn"]}, "--set arch_check"),
        ({"settings": ["blockwise_arch_check=warn"]}, "--set blockwise_arch_check"),
    ],
)
def test_arch_check_is_another_name_of_blockwise_arch_check(write, given, origin):
    loaded = load_config(write("arch_check: off\n"), **{"environ": {}} | given)
    assert loaded.config.blockwise_arch_check == ("warn" if given else "off")
    assert loaded.origins["blockwise_arch_check"].endswith(origin)
    assert "arch_check" in json_schema()["properties"]


def test_a_wrong_value_under_another_name_comes_with_its_line(write):
    path = write("seed: 1\narch_check: yes\n")
    [line] = refusal(path)
    assert f"{path}:2:" in line
    assert "error, warn" in line


def test_a_key_under_both_of_its_names_is_refused(write):
    [line] = refusal(write("arch_check: off\nblockwise_arch_check: warn\n"))
    assert "arch_check and blockwise_arch_check are two names of one setting" in line
    assert ":2:1" in line
    assert "delete arch_check" in line


def test_every_problem_of_a_file_comes_with_its_line(write):
    path = write("seed: x\nlearnig_rate: 2e-4\nlora_target_modules: [q_proj, 7]\n")
    lines = refusal(path)
    assert any("seed must be a whole number" in line and f"{path}:1:1" in line for line in lines)
    assert any("did you mean learning_rate?" in line and f"{path}:2:1" in line for line in lines)
    assert any(f"{path}:3:1" in line for line in lines)
    assert len(lines) == 3


def test_a_contradiction_names_both_places(write):
    path = write("preserve_rng_state: false\n")
    (line,) = refusal(path, settings=["lora_dropout=0.1"])
    assert f"{path}:1:1, --set lora_dropout" in line


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("learning_rate=2e-4", 2e-4),
        ("packing=true", True),
        ("max_steps=null", None),
        ("dataset=null", None),
        ("dataset=2026.jsonl", "2026.jsonl"),
        ("dataset=12", "12"),
        ("output_dir=a=b: c", "a=b: c"),
        ("vram_budget=4", 4.0),
        ("vram_budget=12GB", 12.0),
        ("vram_budget=0.5 g", 0.5),
        ("vram_budget=min", "min"),
        ("lora_target_modules=[q_proj, v_proj]", ("q_proj", "v_proj")),
        ("lora_target_modules=all-linear", "all-linear"),
        ("resume=never", "never"),
    ],
)
def test_a_setting_is_read_by_what_its_field_takes(setting, value):
    loaded = load_config(settings=[setting], environ={})
    assert getattr(loaded.config, setting.partition("=")[0]) == value


def test_wrong_settings_and_variables_are_named():
    lines = refusal(
        settings=["sed=3", "seed", "seed=x", "samples=[a"],
        environ={
            "POROS_LERNING_RATE": "1",
            "POROS_PACKING": "maybe",
            "POROS_FAILPOINT": "x:y",
            "POROS_CACH": "here",
            "POROS_OF_THE_USERS_OWN": "1",
        },
    )
    text = "\n".join(lines)
    assert "unknown key 'sed', --set -> did you mean seed?" in text
    assert "'seed' is not key=value" in text
    assert 'seed must be a whole number >= 0 and < 4294967296, not the text "x", --set seed' in text
    assert "unknown variable POROS_LERNING_RATE" in text
    assert "did you mean POROS_LEARNING_RATE?" in text
    assert 'packing must be true or false, not the text "maybe", POROS_PACKING' in text
    assert "--set samples" in text
    assert "unknown variable POROS_CACH, environment -> did you mean POROS_CACHE?" in text
    assert len(lines) == 7


text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
positive = st.floats(min_value=1e-300, max_value=1e300)
configs = st.fixed_dictionaries(
    {},
    optional={
        "model_name_or_path": text,
        "dataset": st.none() | text,
        "output_dir": text,
        "samples": st.lists(text, max_size=3),
        "lora_target_modules": st.none() | text | st.lists(text, min_size=1, max_size=3),
        "learning_rate": positive,
        "weight_decay": st.just(0.0) | positive,
        "vram_budget": st.sampled_from(["auto", "min"]) | positive,
        "quantization": st.sampled_from(["nf4", "bf16", "bf16_bitwise", "fp16"]),
        "block_size": st.none() | st.integers(1, 10**9),
        "seed": st.integers(0, 2**32 - 1),
        "packing": st.booleans(),
        "nf4_cache": st.sampled_from(["auto", "off"]),
        "resume": text,
    },
)


@settings(max_examples=150)
@given(configs)
def test_a_dumped_config_loads_as_the_same_config(values):
    config = PorosConfig(**values)
    document = parse_document(dump_config(config), name="config.yaml")
    assert PorosConfig(**document.values) == config


@settings(max_examples=150)
@given(st.lists(st.text(max_size=30), max_size=3), st.text(max_size=20))
def test_no_setting_or_variable_raises_anything_but_a_config_error(settings_given, value):
    lines = lines_from(
        lambda: load_config(
            settings=[*settings_given, f"samples=[{value}", f"seed={value}"],
            environ={"POROS_LEARNING_RATE": value, "POROS_MODEL": value},
        )
    )
    assert all(line.isprintable() for line in lines)


def test_a_loaded_config_is_a_value(write):
    path = write("seed: 7\n")
    assert dataclasses.asdict(load_config(path, environ={}))["config"] == PorosConfig(seed=7)
