import json
import random

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poros.data.load import load_data
from poros.errors import PorosDataError
from poros.events import DataPrepared, PhaseFinished, PhaseProgressed, PhaseStarted, Warned
from tests.engine.data.families import FAMILIES
from tests.engine.data.tiny_tokenizers import THINKING, learned, tiny_tokenizer

ROWS = [{"instruction": f"Q{i}", "input": "", "output": f"A{i}"} for i in range(4)]
TOKENIZER = tiny_tokenizer()
SYNTHETIC = [389, 857, 744, 641, 729, 813, 775, 169]


def load(spec, tokenizer=None, **changed):
    events = []
    options = {"split": "train", "max_seq_length": 64, "vocab_size": 300} | changed
    return load_data(
        str(spec), tokenizer or tiny_tokenizer(), emit=events.append, **options
    ), events


def write(folder, name, rows=ROWS):
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows, indent=2))
    elif name.endswith(".csv"):
        cells = [list(rows[0]), *(list(row.values()) for row in rows)]
        path.write_text("".join(",".join(line) + "\n" for line in cells))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("name", ["data.jsonl", "data.json", "data.csv", "data.parquet"])
def test_every_kind_of_file_gives_the_same_samples(tmp_path, name):
    prepared, _ = load(write(tmp_path, name))
    assert [learned(tiny_tokenizer(), sample) for sample in prepared.samples] == [
        f"A{i}<|im_end|>" for i in range(4)
    ]
    assert prepared.digest == load(write(tmp_path, "other.jsonl"))[0].digest


def test_the_phase_is_told_with_progress_and_result(tmp_path):
    prepared, events = load(write(tmp_path, "data.jsonl"), split="validation")
    kinds = [PhaseStarted, PhaseProgressed, DataPrepared, PhaseFinished]
    assert [type(event) for event in events] == kinds
    assert {event.phase for event in events if hasattr(event, "phase")} == {"tokenise"}
    assert (events[1].done, events[1].total, events[1].unit) == (4, 4, "rows")
    assert events[2] == prepared.report.event()
    assert events[2].split == "validation"


def test_every_loss_is_warned_of_with_its_lines(tmp_path):
    path = write(tmp_path, "data.jsonl", [*ROWS, ROWS[0] | {"output": ""}])
    path.write_text(path.read_text() + "not json\n" + json.dumps(ROWS[0] | {"output": "x" * 99}))
    prepared, events = load(path, on_bad_line="skip")
    codes = {event.code: event.message for event in events if isinstance(event, Warned)}
    assert set(codes) == {"W-data-dropped", "W-data-truncated"}
    assert "empty 1 (lines 5)" in codes["W-data-dropped"]
    assert f"bad_line 1 (first: {path}:6:1: expected a value" in codes["W-data-dropped"]
    assert codes["W-data-truncated"].startswith("1 of 5 samples were cut")
    assert prepared.report.num_rows == 7
    assert prepared.report.bad_lines[0].startswith(f"{path}:6:1: ")


def test_conversations_taken_apart_are_warned_of(tmp_path):
    turns = [{"role": role, "content": "hi"} for role in ("user", "assistant") * 2]
    path = write(tmp_path, "data.jsonl", [{"messages": turns}])
    prepared, events = load(path, tiny_tokenizer(THINKING), max_seq_length=200)
    assert len(prepared.samples) == 2
    assert [event.code for event in events if isinstance(event, Warned)] == ["W-data-split"]


def test_answers_learned_without_the_end_of_their_prompts_are_warned_of(tmp_path):
    path = write(tmp_path, "data.jsonl", ROWS)
    _, events = load(path, FAMILIES["deepseek_r1"].tokenizer(), max_seq_length=200)
    (warned,) = (event for event in events if isinstance(event, Warned))
    assert warned.code == "W-data-prompt"
    assert r"asks for answers with '<think>\n' at the end" in warned.message


def test_bad_data_ends_the_phase_with_an_error(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("\n\n")
    with pytest.raises(PorosDataError, match="0 usable samples of 0 rows"):
        load(path)


def test_synthetic_samples_are_full_random_and_repeatable():
    prepared, events = load("synthetic:5", max_seq_length=40, vocab_size=97)
    assert [len(sample) for sample in prepared.samples] == [40] * 5
    tokens = {token for sample in prepared.samples for token in sample.input_ids}
    assert min(tokens) >= 0
    assert 80 < len(tokens) <= 97
    assert max(tokens) < 97
    assert prepared.report.num_label_tokens == 5 * 39
    assert prepared.report.shape == "synthetic"
    assert prepared.digest == load("synthetic:5", max_seq_length=40, vocab_size=97)[0].digest
    longer, _ = load("synthetic:6", max_seq_length=40, vocab_size=97)
    assert longer.samples[:5] == prepared.samples
    held_out, _ = load("synthetic:5", max_seq_length=40, vocab_size=97, split="validation")
    assert held_out.samples[0] != prepared.samples[0]
    assert [type(event) for event in events] == [PhaseStarted, DataPrepared, PhaseFinished]


def test_synthetic_data_never_changes():
    prepared, _ = load("synthetic:3", max_seq_length=8, vocab_size=1000)
    assert prepared.samples[0].input_ids.tolist() == SYNTHETIC


def test_samples_of_one_token_are_refused():
    with pytest.raises(PorosDataError, match="nothing to predict"):
        load("synthetic", max_seq_length=1)


SEEDS = {
    "data.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
    "data.json": json.dumps(ROWS, indent=1).encode(),
    "data.csv": b"prompt,completion\nQ,A\n" + b'"Q ""2""",A\n' * 3,
}
PIECES = [b"null", b"5", b"[]", b'"messages"', b'"text"', b'"', b"\0", b"\xff", b"{}", b"\n", b""]


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32))
def test_mutated_files_give_samples_to_learn_from_or_a_data_error(tmp_path, seed):
    rng = random.Random(seed)
    name, content = rng.choice(list(SEEDS.items()))
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(damaged) + 1)
        damaged[at : at + rng.randint(0, 12)] = rng.choice(PIECES)
    path = tmp_path / name
    path.write_bytes(damaged)
    try:
        prepared, _ = load(path, TOKENIZER, on_bad_line=rng.choice(["error", "skip"]))
    except PorosDataError as error:
        problem = str(error)
    else:
        problem = "none"
        assert all(sample.num_label_tokens > 0 for sample in prepared.samples)
    assert problem.isprintable()


JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["user", "gpt", "assistant"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "type"]), inner)
    ),
    max_leaves=8,
)
KEYS = ["messages", "conversations", "instruction", "input", "output", "text", "prompt"]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.dictionaries(st.sampled_from(KEYS), JSON_VALUES), min_size=1, max_size=3))
def test_rows_of_any_form_give_samples_or_a_data_error(tmp_path, rows):
    try:
        prepared, _ = load(write(tmp_path, "data.jsonl", rows), TOKENIZER)
    except PorosDataError as error:
        problem = str(error)
    else:
        problem = "none"
        assert all(sample.num_label_tokens > 0 for sample in prepared.samples)
    assert problem.isprintable()
