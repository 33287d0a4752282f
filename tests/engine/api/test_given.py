from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from poros.data.given import GivenBatches, rows_of, samples_of
from poros.errors import PorosConfigError, PorosDataError
from tests.engine.api.five_lines import bits_of, trainer_in


class Tokens(Dataset):
    """Six rows of four to nine tokens."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= 6:
            raise IndexError(index)
        return {"input_ids": torch.arange(1, 5 + index), "labels": torch.arange(1, 5 + index)}


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    ids = [row["input_ids"] for row in rows]
    return {
        "input_ids": pad(ids, batch_first=True),
        "labels": pad(ids, batch_first=True, padding_value=-100),
        "attention_mask": pad([torch.ones_like(row) for row in ids], batch_first=True),
    }


def drawn(loader: DataLoader, **changes: object) -> GivenBatches:
    settings = {
        "num_passes": 1, "max_steps": None, "accumulation": 2, "seed": 3, "max_seq_length": 16,
        "vocab_size": 264,
    }  # fmt: skip
    return GivenBatches(loader, **settings | changes)


def ids_in(batches: GivenBatches) -> list[list[list[int]]]:
    return [batch.input_ids_BT.tolist() for batch in batches.all()]


def test_micro_batches_are_the_loaders_in_its_order():
    loader = DataLoader(Tokens(), batch_size=2, collate_fn=padded)
    batches = drawn(loader)
    assert ids_in(batches) == [batch["input_ids"].tolist() for batch in loader]
    assert [len(batches.next_step()), len(batches.next_step())] == [2, 1]
    assert batches.cursor == {"epoch": 1, "position": 0}
    assert batches.num_total_steps == batches.steps_per_epoch == 2
    assert batches.most_tokens == 18


def test_a_shuffled_loader_is_drawn_from_the_seed_and_leaves_random_numbers_alone():
    loader = DataLoader(Tokens(), batch_size=2, shuffle=True, collate_fn=padded)
    state = torch.get_rng_state()
    first, again, other = drawn(loader), drawn(loader), drawn(loader, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert ids_in(first) == ids_in(again) != ids_in(other)
    two = drawn(loader, num_passes=2)
    assert ids_in(two)[:3] == ids_in(first) != ids_in(two)[3:]


def test_steps_go_through_the_loader_as_often_as_it_takes():
    loader = DataLoader(Tokens(), batch_size=2, collate_fn=padded)
    batches = drawn(loader, max_steps=5)
    assert [len(batches.next_step()) for _ in range(5)] == [2, 1, 2, 1, 2]
    batches.seek({"epoch": 1, "position": 1})
    assert len(batches.next_step()) == 1
    for cursor in ({"epoch": 0, "position": 2}, {"epoch": -1, "position": 0}):
        with pytest.raises(ValueError, match="no step begins"):
            batches.seek(cursor)


def test_masks_and_labels_reach_the_model_as_they_are():
    [batch, *_] = drawn(DataLoader(Tokens(), batch_size=2, collate_fn=padded)).all()
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    assert batch.labels_BT.tolist() == [[1, 2, 3, 4, -100], [1, 2, 3, 4, 5]]
    assert (batch.num_label_tokens, batch.num_tokens) == (7, 9)


def test_without_labels_every_token_but_padding_is_learned():
    one = {"input_ids": torch.ones(1, 4, dtype=torch.int64), "attention_mask": torch.ones(1, 4)}
    one["attention_mask"][0, 3] = 0
    [batch] = drawn(DataLoader([one], batch_size=None)).all()
    assert batch.labels_BT.tolist() == [[1, 1, 1, -100]]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (["text"], "holds no tensor input_ids"),
        ({"text": ["a"]}, "holds no tensor input_ids"),
        ({"input_ids": torch.ones(1, 4), "text": "a"}, "has text, which"),
        ({"input_ids": torch.ones(1, 4), "labels": torch.ones(1, 3)}, "labels has shape"),
        ({"input_ids": torch.full((1, 4), 264)}, "token 264 is not among"),
        ({"input_ids": torch.ones(1, 17)}, "17 tokens, more than max_seq_length 16"),
        ({"input_ids": torch.ones(1, 4), "labels": torch.full((1, 4), -100)}, "nothing to learn"),
    ],
)
def test_a_batch_that_cannot_be_trained_on_is_named(batch, words):
    with pytest.raises(PorosDataError, match=words) as caught:
        drawn(DataLoader([batch], batch_size=None))
    assert "batch 1" in caught.value.where
    assert caught.value.remediation


def test_an_empty_loader_is_refused():
    with pytest.raises(PorosDataError, match="no batches"):
        drawn(DataLoader([], batch_size=None))


def test_rows_of_tokens_are_samples():
    rows = rows_of(
        [{"input_ids": [1, 2, 3, 0], "attention_mask": [1, 1, 1, 0]}, {"input_ids": [4]}]
    )
    prepared = samples_of(rows, split="train", max_seq_length=8, vocab_size=9, pad=(0, "pad"))
    [sample] = prepared.samples
    assert (list(sample.input_ids), list(sample.labels)) == ([1, 2, 3], [-100, 2, 3])
    assert prepared.report.drop_reasons == {"no_labels": 1}
    for row, words in (
        ({"input_ids": [1, 9]}, "token 9"),
        ({"input_ids": [1] * 9}, "9 tokens"),
        ({"input_ids": [1, 2], "labels": [1]}, "1 labels"),
        ({"text": "a"}, "without input_ids"),
    ):
        with pytest.raises(PorosDataError, match=words):
            samples_of(
                [*rows, *rows_of([row])], split="t", max_seq_length=8, vocab_size=9, pad=(0, "")
            )
    with pytest.raises(PorosDataError, match="a row is a str"):
        rows_of(["text"])


def test_a_loaders_run_resumes_with_the_same_bits(tmp_path: Path, chat_folder: Path):
    def run(name: str, resume_from: Path | None = None) -> Path:
        trainer = trainer_in(tmp_path / name, chat_folder, save_steps=1)
        loader = DataLoader(Tokens(), batch_size=2, shuffle=True, collate_fn=padded)
        metrics = trainer.train(loader, steps=3, resume_from=resume_from and str(resume_from))
        return Path(metrics["adapter_path"])

    whole = run("whole")
    resumed = run("resumed", tmp_path / "whole" / "run" / "checkpoints" / "step-000002")
    assert bits_of(resumed) == bits_of(whole)


def test_a_loader_is_not_packed(tmp_path: Path, chat_folder: Path):
    trainer = trainer_in(tmp_path, chat_folder, packing=True)
    with pytest.raises(PorosConfigError, match="whole batches"):
        trainer.train(DataLoader(Tokens(), batch_size=2, collate_fn=padded), steps=1)
