"""What fits is found by trying: fewer rows first, then shorter ones."""

import pytest
import torch

from poros.data.batches import Batch
from poros.training.fitting import Fitting, fits, fitting_setting, part_of
from tests.engine.training.tiny_run import CPU


def batch(num_rows=4, num_tokens=160, *, packed=False):
    ids_BT = torch.arange(num_rows * num_tokens).view(num_rows, num_tokens)
    shape = (num_rows, 1, num_tokens, num_tokens) if packed else (num_rows, num_tokens)
    return Batch(ids_BT, ids_BT, torch.ones(shape), ids_BT, tuple(range(num_rows)))


@pytest.mark.parametrize(
    ("most_tokens", "expected"),
    [
        (500, Fitting(num_rows=2)),
        (160, Fitting(num_rows=1)),
        (159, Fitting(num_tokens=150)),
        (47, Fitting(num_tokens=40)),
        (9, None),
    ],
)
def test_the_largest_part_that_fits_is_found(most_tokens, expected):
    found = fitting_setting(batch(), lambda part: part.input_ids_BT.numel() <= most_tokens)
    assert found == expected


@pytest.mark.parametrize("packed", [False, True])
def test_a_part_is_cut_in_all_its_tensors(packed):
    part = part_of(batch(packed=packed), 3, 20)
    mask = part.attention_mask
    assert part.input_ids_BT.shape == part.labels_BT.shape == part.position_ids_BT.shape == (3, 20)
    assert mask.shape == ((3, 1, 20, 20) if packed else (3, 20))
    assert part.sample_ids == (0, 1, 2)


def test_only_a_shortage_means_that_it_does_not_fit():
    rested = []

    def full(_):
        raise torch.OutOfMemoryError

    def broken(_):
        raise RuntimeError("shapes")

    assert not fits(full, batch(), CPU, lambda: rested.append(1))
    assert fits(lambda _: None, batch(), CPU, lambda: rested.append(1))
    assert len(rested) == 2
    with pytest.raises(RuntimeError, match="shapes"):
        fits(broken, batch(), CPU, lambda: None)
