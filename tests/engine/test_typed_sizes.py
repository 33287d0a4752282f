import pytest

from poros.typed_sizes import in_gb, other_unit, typed_bytes, typed_gb, without_gb
from tests.engine.command_line import poros_here


@pytest.mark.parametrize(
    ("text", "size_gb"),
    [("12", 12), ("12.0", 12), ("12GB", 12), ("12 GB", 12), (" 12gb ", 12), ("12g", 12),
     (".5G", 0.5), ("1e1", 10), ("2.5e-1 GB", 0.25), ("-3", -3)],
)  # fmt: skip
def test_a_number_of_gb_is_taken_with_its_unit_and_without(text, size_gb):
    assert typed_gb(text) == size_gb
    assert other_unit(text) == ""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("12GiB", "write 12.8849 for 12GiB"),
        ("12000 MB", "write 12 for 12000 MB"),
        ("1T", "write 1000 for 1T"),
        ("500 b", "write 5e-07 for 500 b"),
    ],
)
def test_another_unit_is_told_with_the_number_to_write(text, told):
    with pytest.raises(ValueError, match=r"sizes are in GB \(1e9 bytes\)") as refused:
        typed_gb(text)
    assert str(refused.value).endswith(told)
    assert typed_gb(told.split()[1]) == pytest.approx(in_gb(text), rel=1e-5)


@pytest.mark.parametrize("text", ["-3 MB", "0 MB", "1e999 MB"])
def test_what_can_be_no_size_is_not_told_in_gb(text):
    assert other_unit(text) == ""
    with pytest.raises(ValueError, match="is no number of GB"):
        typed_gb(text)


@pytest.mark.parametrize("text", ["", "lots", "GB", "12 GBs", "1,5", "1_0", "inf", "nan", "12e"])
def test_what_is_no_size_is_told(text):
    assert typed_bytes(text) is None
    with pytest.raises(ValueError, match="is neither auto nor min nor a number of GB"):
        typed_gb(text, "auto", "min")
    assert without_gb(text) == text


def test_a_value_of_a_config_is_a_number_only_if_gb_stand_there():
    assert [without_gb(value) for value in ("12GB", "12", "12GiB", "auto", 12, None)] == [
        12.0, "12", "12GiB", "auto", 12, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "after"),
    [
        (("check", "/no/such", "--vram"), 4),
        (("chat", "no-such", "--vram-budget"), 2),
        (("generate", "no-such", "-p", "x", "--vram-budget"), 2),
        (("parity", "/no/such.yaml", "--cap-gb"), 2),
        (("cache", "prune", "--yes", "--keep"), 0),
    ],
)
def test_every_option_that_takes_a_size_reads_it_so(command, after, tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path), "POROS_CACHE": str(tmp_path)}
    for text in ("12", "12GB", "12 g"):
        taken = poros_here(*command, text, **environ)
        assert (taken.returncode, "Invalid value" in taken.stderr) == (after, False)
    for text, told in (("12GiB", "write 12.8849 for 12GiB"), ("-1", "no number of GB")):
        refused = poros_here(*command, text, **environ)
        assert refused.returncode == 2
        assert told in refused.stderr
