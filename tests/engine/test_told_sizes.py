import pytest

from poros.told_sizes import told_size


@pytest.mark.parametrize(
    ("num_bytes", "told"),
    [
        (0, "0 GB"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1.00 kB"),
        (1_234_567, "1.23 MB"),
        (9_999_999, "10.00 MB"),
        (10_000_000, "0.01 GB"),
        (12_370_000_000, "12.37 GB"),
    ],
)
def test_what_is_there_is_never_told_as_nothing(num_bytes, told):
    assert told_size(num_bytes) == told


def test_with_fewer_digits_the_smaller_unit_comes_sooner():
    assert told_size(60_000_000, digits=1) == "60.0 MB"
    assert told_size(160_000_000, digits=1) == "0.2 GB"
