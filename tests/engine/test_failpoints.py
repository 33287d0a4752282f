"""Failpoints are armed by the environment and do nothing without it."""

import errno
import re
from pathlib import Path

import pytest

from poros import failpoints
from poros.errors import PorosConfigError


@pytest.fixture(autouse=True)
def _from_zero():
    failpoints.reset()
    yield
    failpoints.reset()


def fails(name: str) -> bool:
    try:
        failpoints.hit(name)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False


@pytest.mark.parametrize(
    ("nth", "expected"),
    [("", [True] * 4), ("@2", [False, True, False, False]), ("@2+", [False, True, True, True])],
)
def test_the_nth_hit_fails(monkeypatch, nth, expected):
    monkeypatch.setenv(failpoints.VARIABLE, f"atomic.written:enospc{nth}")
    assert [fails("atomic.written") for _ in range(4)] == expected


def test_unarmed_points_do_nothing(monkeypatch):
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    assert not fails("atomic.written")
    monkeypatch.setenv(failpoints.VARIABLE, "atomic.rename:enospc")
    assert not fails("atomic.written")


@pytest.mark.parametrize(
    "text", ["nowhere:kill", "atomic.written", "atomic.written:jump", "atomic.written:eio@x"]
)
def test_a_malformed_entry_is_a_config_error(text):
    with pytest.raises(PorosConfigError):
        failpoints.armed(text)


def test_every_registered_point_is_in_the_code_and_the_other_way_round():
    root = Path(failpoints.__file__).parent
    code = "".join(path.read_text() for path in sorted(root.rglob("*.py")))
    assert set(re.findall(r'failpoints\.hit\("([a-z_.]+)"\)', code)) == set(failpoints.POINTS)
