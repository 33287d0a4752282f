"""Faults 1 to 4: a config is refused whole, before anything is read or made."""

import json

import pytest

from tests.faults.bench import SETTINGS, Case, expect, refuse


def text(config):
    """The file's bytes in place of a config."""

    def plant(bench):
        bench.config = config.encode() if isinstance(config, str) else config

    return plant


def settings(**changes):
    return lambda bench: bench.settings.update(changes)


def flags(*words):
    return lambda bench: bench.flags.extend(words)


def environ(**variables):
    return lambda bench: bench.environ.update(variables)


HEAD = "dataset: data.jsonl\n"

CASES = [
    Case(1, "a tab indents", text(HEAD + "samples:\n\t- a\n"), 2, ("train.yaml:3:", "tab")),
    Case(1, "a bracket stays open", text(HEAD + "samples: [a\n"), 2, ("train.yaml:", "YAML 1.2")),
    Case(1, "a quote stays open", text(HEAD + 'dataset: "a\n'), 2, ("train.yaml:", "YAML 1.2")),
    Case(1, "a NUL", text(b"dataset: a\0b\n"), 2, ("train.yaml:1:11", "NUL")),
    Case(1, "a control character", text("dataset: a\x07b\n"), 2, ("train.yaml:1:11", "U+0007")),
    Case(1, "an alias of nothing", text(HEAD + "seed: *x\n"), 2, ("train.yaml:2:7", "alias")),
    Case(1, "bytes that are not UTF-8", text(HEAD.encode() + b"# \xff\n"), 2, (":2", "0xff")),
    Case(1, "an empty file", text(""), 2, ("train.yaml", "empty")),
    Case(2, "a key twice", text(HEAD + "seed: 1\nseed: 2\n"), 2, ("'seed' again", ":2:1")),
    Case(2, "no is text", text(HEAD + "packing: no\n"), 2, ("train.yaml:2:1", "packing", '"no"')),
    Case(2, "a number in quotes", text(HEAD + 'learning_rate: "1e-4"\n'), 2, ("learning_rate",)),
    Case(2, "minutes are text", text(HEAD + "seed: 12:30:45\n"), 2, ("seed", "12:30:45")),
    Case(2, "a Python tag", text("dataset: !!python/object/apply:os.system [a]\n"), 2, ("tag",)),
    Case(2, "a date is text", text(HEAD + "seed: 2020-01-01\n"), 2, ("seed", "2020-01-01")),
    Case(2, "20 000 brackets", text("dataset: " + "[" * 20_000), 2, ("nested deeper than 64",)),
    Case(
        2,
        "an alias bomb",
        text("a: &a [x,x]\nb: &b [*a,*a]\ndataset: [*b,*b]\n"),
        2,
        ("anchor &a", "alias *b"),
        6,
    ),
    Case(2, "a list on top", text("- dataset\n"), 2, ("a list, not a mapping",)),
    Case(2, "two documents", text(HEAD + "---\n" + HEAD), 2, ("second document",)),
    Case(2, "more than a megabyte", text("#" * 1_000_001), 2, ("larger than 1000000 bytes",)),
    Case(3, "an unknown key", settings(lora_rnk=4), 2, ("lora_rnk", "lora_rank")),
    Case(3, "a wrong type", settings(seed="x"), 2, ("seed", '"x"')),
    Case(3, "a true for a number", settings(seed=True), 2, ("seed",)),
    Case(3, "null for a number", settings(seed=None), 2, ("seed", "null")),
    Case(3, "out of range", settings(lora_dropout=1.0), 2, ("lora_dropout", "1.0")),
    Case(3, "an accumulation of 0", settings(gradient_accumulation_steps=0), 2, ("0",)),
    Case(3, "a NaN", text(HEAD + "learning_rate: .nan\n"), 2, ("learning_rate", "NaN")),
    Case(3, "an infinity", text(HEAD + "learning_rate: .inf\n"), 2, ("learning_rate", "Infinity")),
    Case(3, "an unknown --set", flags("--set", "sed=1"), 2, ("sed", "seed")),
    Case(3, "a --set without =", flags("--set", "seed"), 2, ("--set",)),
    Case(3, "an unknown variable", environ(POROS_SED="1"), 2, ("POROS_SED", "POROS_SEED")),
    Case(3, "a wrong variable", environ(POROS_SEED="x"), 2, ("POROS_SEED", "x")),
    Case(3, "an unknown flag", flags("--colour"), 2, ("--colour",)),
    Case(
        3,
        "three problems at once",
        settings(seed="x", lora_rnk=4, device="gpu"),
        2,
        ("seed", "lora_rnk", "device"),
        3,
    ),
    Case(4, "positions beyond the model's", settings(max_seq_length=129), 2, ("128 positions",)),
    Case(4, "dropout without its draws", settings(preserve_rng_state=False), 2, ("lora_dropout",)),
    Case(4, "no data", text("seed: 1\n"), 2, ("dataset is missing",)),
    Case(4, "a task we have not", settings(freeze_lm_head=False), 2, ("freeze_lm_head",)),
    Case(4, "a GPU that is not there", settings(device="cuda:7"), 2, ("no cuda:7",)),
    Case(4, "linears that are not there", settings(lora_target_modules="q"), 2, ("q_proj",)),
    Case(4, "a count that is none", settings(dataset="synthetic:x"), 2, ("synthetic:256",)),
    Case(4, "evaluation of nothing", settings(eval_steps=2), 2, ("eval_dataset",)),
    Case(4, "a failpoint that is none", environ(POROS_FAILPOINT="x:kill"), 2, ("failpoint",)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_bad_config_is_one_line_and_nothing_is_made(case, bench):
    refuse(case, bench)


@pytest.mark.parametrize("path", ["no/such.yaml", "model"])
def test_a_config_that_is_no_file_is_named(path, bench):
    expect(bench.run("train", path), 2, path)


def test_a_dry_run_finds_the_same_and_makes_nothing(bench):
    bench.settings["seed"] = "x"
    bench.flags = ["--dry-run"]
    with bench.unchanged():
        expect(bench.run(), 2, "seed")
        bench.settings = dict(SETTINGS)
        expect(bench.run(), 0, num_errors=0)


def test_with_json_the_record_has_the_line_s_code(bench):
    bench.settings["seed"] = "x"
    bench.flags = ["--json"]
    ended = bench.run()
    expect(ended, 2, "seed")
    record = json.loads(ended.stdout)
    assert (record["event"], record["exit_code"]) == ("run_failed", 2)
