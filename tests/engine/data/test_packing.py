import random

import pytest
import torch

from poros.data.packing import block_diagonal_mask, document_numbers, pack, restarting_positions
from tests.engine.data.tiny_samples import make_samples


@pytest.mark.parametrize("seed", range(5))
def test_every_sample_stands_in_one_row_and_rows_hold_their_width(seed):
    rng = random.Random(seed)
    lengths = [rng.randint(1, 50) for _ in range(700)]
    order = rng.sample(range(700), 700)
    rows = pack(lengths, 50, order)
    assert sorted(number for row in rows for number in row) == list(range(700))
    assert max(sum(lengths[number] for number in row) for row in rows) <= 50
    assert sum(lengths) / (50 * len(rows)) > 0.9
    assert rows == pack(lengths, 50, order)


def test_samples_go_into_the_first_row_with_room():
    assert pack([6, 5, 4, 3, 2], 10, range(5)) == [(0, 2), (1, 3, 4)]
    assert pack([10, 10], 10, [1, 0]) == [(1,), (0,)]
    assert pack([], 10, []) == []


@pytest.mark.parametrize("lengths", [(3, 2), (3, 2, 3), (8,), (1,)])
def test_a_token_sees_its_own_document_up_to_itself(lengths):
    documents = document_numbers(make_samples(lengths), 8)
    mask = block_diagonal_mask(documents)
    numbers = [n for n, length in enumerate((*lengths, 8 - sum(lengths))) for _ in range(length)]
    assert documents.tolist() == numbers
    expected = [[numbers[q] == numbers[k] and k <= q for k in range(8)] for q in range(8)]
    assert mask.tolist() == expected
    assert mask.any(dim=1).all()
    assert mask.dtype == torch.bool


def test_positions_restart_with_each_document():
    documents = document_numbers(make_samples((3, 2)), 8)
    assert restarting_positions(documents).tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
