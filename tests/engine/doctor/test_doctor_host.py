"""Rows of the machine, from inputs that are made up."""

import errno
from pathlib import Path

import pytest

from poros import doctor_host, host_room
from poros.doctor_host import Disk, Memory, disk_row, limit_row, lock_row, memory_row, wsl_row

GB = 10**9
DISK = Disk("disk_hub", "downloaded models", Path("/models"), "export HF_HOME=/larger")
WSL2 = "5.15.153.1-microsoft-standard-WSL2"


def test_enough_memory_is_ok():
    row = memory_row(Memory(32 * GB, 24 * GB))
    assert (row.state, row.what, row.fix) == ("ok", "24.0 GB of 32.0 GB available", "")


def test_memory_that_others_hold_can_be_had_back():
    row = memory_row(Memory(32 * GB, 3 * GB))
    assert (row.state, row.fix) == ("warn", "close other programs")


def test_a_small_machine_needs_a_smaller_model():
    row = memory_row(Memory(6 * GB, 5 * GB))
    assert row.state == "warn"
    assert "smaller model" in row.fix


def test_memory_is_told_within_the_cgroups_limit():
    row = memory_row(Memory(64 * GB, 9 * GB, limit_bytes=10 * GB))
    assert row.what == "9.0 GB of 10.0 GB available"


@pytest.mark.parametrize(
    ("limit_bytes", "state"), [(None, "ok"), (64 * GB, "ok"), (16 * GB, "ok"), (4 * GB, "warn")]
)
def test_a_limit_is_bad_news_only_if_it_is_low(limit_bytes, state):
    row = limit_row(Memory(32 * GB, 4 * GB, limit_bytes=limit_bytes))
    assert row.state == state
    assert bool(row.fix) == (state == "warn")


def test_the_lowest_limit_around_the_process_counts(tmp_path, monkeypatch):
    inner = tmp_path / "user" / "job"
    inner.mkdir(parents=True)
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text("5000000000\n")
    own = tmp_path / "own"
    own.write_text("0::/user/job\n")
    monkeypatch.setattr(host_room, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host_room, "_OWN_CGROUP", own)
    assert host_room.limit_bytes() == 5 * GB
    (inner.parent / "memory.max").write_text("max\n")
    assert host_room.limit_bytes() is None


def test_wsl_pins_little():
    assert lock_row(None, is_wsl=True).state == "warn"
    assert lock_row(8 << 20, is_wsl=False).what == "ulimit -l is 8192 kB"
    assert lock_row(None, is_wsl=False).state == "ok"


@pytest.mark.parametrize(
    ("release", "state", "fix"),
    [
        ("6.8.0-45-generic", "ok", ""),
        (WSL2, "warn", ".wslconfig"),
        ("4.4.0-19041-Microsoft", "bad", "--set-version"),
    ],
)
def test_wsl_is_told_by_the_kernels_release(release, state, fix):
    row = wsl_row(release)
    assert row.state == state
    assert fix in row.fix


@pytest.mark.parametrize(
    ("free_bytes", "filesystem", "state"),
    [
        (200 * GB, "ext4", "ok"),
        (10 * GB, "ext4", "warn"),
        (1 * GB, "ext4", "bad"),
        (200 * GB, "tmpfs", "warn"),
        (200 * GB, "9p", "warn"),
        (None, "", "unknown"),
    ],
)
def test_a_disk(free_bytes, filesystem, state):
    row = disk_row(DISK, free_bytes, filesystem=filesystem)
    assert row.state == state
    assert ("HF_HOME" in row.fix) == (state in ("warn", "bad"))


def test_a_place_that_cannot_be_written_is_bad():
    row = disk_row(DISK, 200 * GB, failure="Read-only file system")
    assert (row.state, row.id) == ("bad", "disk_hub")
    assert "Read-only file system" in row.what
    assert "rights" in row.fix


def test_a_folder_that_is_not_there_yet_is_looked_at_where_it_will_be(tmp_path):
    row = doctor_host._look_at_disk(Disk("x", "things", tmp_path / "a" / "b", "setting"))
    assert row.state in ("ok", "warn", "bad")  # by this disk
    assert str(tmp_path / "a" / "b") in row.what
    assert not (tmp_path / "a").exists()


def test_what_the_system_says_to_a_real_file_counts(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    disk = Disk("x", "things", tmp_path, "setting")
    assert "can't be written" not in doctor_host._look_at_disk(disk).what
    monkeypatch.setattr(doctor_host.os, "fsync", full)
    row = doctor_host._look_at_disk(disk)
    assert (row.state, "Disk quota exceeded" in row.what) == ("bad", True)
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    row = doctor_host._look_at_disk(Disk("x", "things", tmp_path / "file" / "b", "setting"))
    assert row.state == "bad"


@pytest.mark.parametrize(("version", "state"), [((3, 10, 9), "bad"), ((3, 13, 0), "ok")])
def test_python(version, state):
    row = doctor_host.python_row(version, "/venv", "/usr")
    assert row.state == state
    assert "virtual environment" in row.what
