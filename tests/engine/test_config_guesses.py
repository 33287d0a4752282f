import pytest

from poros import config_guesses
from poros.config import field_schemas
from poros.config_guesses import known_elsewhere, meant
from tests.engine.command_line import poros_here


def test_names_of_other_tools_lead_to_settings_that_exist_and_are_none():
    names = [name for names in config_guesses._ELSEWHERE.values() for name in names.split()]
    assert set(config_guesses._ELSEWHERE) <= set(field_schemas())
    assert set(names).isdisjoint(field_schemas())
    assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize(
    ("guess", "key"),
    [
        ("model", "model_name_or_path"), ("lr", "learning_rate"), ("epochs", "num_epochs"),
        ("batch_size", "per_device_batch_size"), ("data", "dataset"), ("train_file", "dataset"),
        ("seq_len", "max_seq_length"), ("SEQ-LEN", "max_seq_length"),
        ("grad_clip", "max_grad_norm"),
        ("load_in_4bit", "quantization"), ("out", "output_dir"), ("lerning_rate", "learning_rate"),
        ("optimizer", ""), ("report_to", ""), ("fp16", ""), (7, ""),
    ],
)  # fmt: skip
def test_a_guess_finds_the_setting_or_none_rather_than_a_wrong_one(guess, key):
    assert meant(guess, field_schemas()) == key


def test_a_name_of_other_tools_is_no_guess_where_such_a_key_is_unknown():
    assert meant("lr", ["layers_path"]) == ""


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--lr", "No such option '--lr', poros train -> write --set learning_rate=VALUE"),
        ("--learning-rate", "write --set learning_rate=VALUE"),
        ("--max-steps", "write --set max_steps=VALUE"),
        ("--out", "No such option '--out', poros train -> write --output-dir VALUE"),
        ("--dry", "No such option '--dry'. Did you mean '--dry-run', poros train -> see"),
        ("--nonsense", "see poros train --help"),
    ],
)
def test_an_option_that_is_a_setting_is_told_as_one(option, said):
    ended = poros_here("train", "x.yaml", option)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert known_elsewhere("dry") == ""


def test_a_command_without_settings_names_none():
    assert "--set" not in poros_here("init", "x.yaml", "--lr").stderr
