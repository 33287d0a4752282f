import torch

from poros.measure.fingerprint import (
    difference,
    digest,
    first_difference,
    merkle_root,
    same_bits,
)


def test_equal_bytes_are_the_same():
    assert same_bits(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]))


def test_the_sign_of_zero_is_a_difference():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_a_nan_equals_itself():
    nan = torch.tensor([float("nan")])
    assert same_bits(nan, nan.clone())


def test_dtype_and_shape_are_differences():
    zeros = torch.zeros(4)
    assert not same_bits(zeros, zeros.to(torch.int32))
    assert digest(zeros) != digest(zeros.to(torch.int32))
    assert digest(zeros) != digest(zeros.view(2, 2))


def test_a_digest_reads_values_in_logical_order():
    square = torch.arange(4.0).view(2, 2)
    assert digest(square.t()) == digest(square.t().contiguous())
    assert digest(square.t()) != digest(square)


def test_neighbouring_floats_are_one_ulp_apart():
    one = torch.ones(3, dtype=torch.bfloat16)
    other = one.clone()
    other[1] = 1.0078125
    found = difference("x", one, other)
    assert found is not None
    assert (found.num_different, found.max_ulp, found.max_abs) == (1, 1, 0.0078125)


def test_zeros_of_two_signs_are_one_ulp_apart():
    found = difference("x", torch.tensor([0.0]), torch.tensor([-0.0]))
    assert found is not None
    assert found.max_ulp == 1


def test_the_first_difference_is_in_the_left_sides_order():
    left = {"b": torch.zeros(1), "a": torch.zeros(1)}
    right = {"a": torch.ones(1), "b": torch.ones(1)}
    found = first_difference(left, right)
    assert found is not None
    assert found.name == "b"


def test_a_name_on_one_side_only_is_a_difference():
    one = {"a": torch.zeros(1)}
    assert first_difference(one, {}).reason == "missing on the right"
    assert first_difference({}, one).reason == "missing on the left"
    assert first_difference(one, one) is None


def test_a_root_changes_with_any_digest_and_not_with_the_order():
    digests = {f"item{k}": f"{k:064x}" for k in range(7)}
    root = merkle_root(digests)
    assert merkle_root(dict(reversed(digests.items()))) == root
    assert merkle_root(digests | {"item3": "0" * 64}) != root
    assert merkle_root({}) != root
