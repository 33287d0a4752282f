"""A run folder belongs to one run, and to one process at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poros.errors import PorosOutputError
from poros.run_folder import free_name, open_run_folder, read_run

HOLD = """
import os, sys, time
from pathlib import Path
from poros.run_folder import open_run_folder
with open_run_folder(Path(sys.argv[1]), identity={}):
    if os.fork() == 0:  # a data worker that outlives its parent
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def enter(path: Path, **identity: str) -> None:
    with open_run_folder(path, identity=identity) as folder:
        folder.record("model: x\n")


def train_in(path: Path, **identity: str) -> None:
    enter(path, **identity)
    (path / "checkpoints" / "step-000001").mkdir()


@pytest.mark.parametrize(
    "name",
    ["plain", "with space", "naïve ✓", "two\nlines", "q\"u'ote", os.fsdecode(b"\xff"), "n" * 255],
)
def test_a_folder_of_any_name_is_made_and_entered_again(tmp_path, name):
    train_in(tmp_path / name, model="a")
    first = read_run(tmp_path / name)
    enter(tmp_path / name, model="a")
    assert first == read_run(tmp_path / name)
    names = sorted(path.name for path in (tmp_path / name).iterdir())
    assert names == ["checkpoints", "config.yaml", "lock", "logs", "run.json"]


def test_another_runs_folder_is_refused_with_the_free_name(tmp_path):
    train_in(tmp_path / "out", model="a")
    train_in(tmp_path / "out-2", model="a")
    before = (tmp_path / "out" / "run.json").read_bytes()
    with pytest.raises(PorosOutputError, match=r"other model.*out-3") as caught:
        enter(tmp_path / "out", model="b")
    assert caught.value.exit_code == 7
    assert (tmp_path / "out" / "run.json").read_bytes() == before


def test_a_folder_of_other_files_is_refused_untouched(tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(PorosOutputError, match="no run's"):
        enter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_file_or_a_missing_parent_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "out", tmp_path / "no" / "out"):
        with pytest.raises(PorosOutputError):
            enter(path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_resume_never_does_not_touch_checkpoints(tmp_path):
    train_in(tmp_path / "out")
    with (
        pytest.raises(PorosOutputError, match="resume is never"),
        open_run_folder(tmp_path / "out", identity={}, resume=False),
    ):
        pass


def test_a_second_holder_learns_who_is_the_first_and_a_killed_one_frees_the_folder(tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        try:
            assert first.stdout is not None
            first.stdout.readline()
            with pytest.raises(PorosOutputError, match=rf"pid {first.pid} on .*since 20"):
                enter(out)
            first.kill()
            first.wait()
            enter(out)  # its forked child still lives
        finally:
            os.killpg(first.pid, 9)


def test_one_process_cannot_enter_twice(tmp_path):
    with (
        open_run_folder(tmp_path / "out", identity={}),
        pytest.raises(PorosOutputError, match=f"pid {os.getpid()}"),
        open_run_folder(tmp_path / "out", identity={}),
    ):
        pass
    enter(tmp_path / "out")


def test_what_a_killed_writer_left_is_swept(tmp_path):
    enter(tmp_path / "out")
    (tmp_path / "out" / "checkpoints" / ".tmp-1-aa").mkdir()
    enter(tmp_path / "out")
    assert list((tmp_path / "out" / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("options", ["ro", "size=1k"])
def test_an_unwritable_filesystem_is_found_by_writing(tmp_path, options):
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path)], capture_output=True
    )
    # No right to mount here: a filesystem that refuses new names does as well.
    place = Path("/proc/poros-out") if mount.returncode else tmp_path / "out"
    try:
        if options == "size=1k" and not mount.returncode:
            (tmp_path / "filler").write_bytes(b"x" * 4096)
        with pytest.raises(PorosOutputError, match="can't be written"):
            enter(place)
    finally:
        if not mount.returncode:
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_folder_without_results_serves_another_run_and_a_new_one_can_be_discarded(tmp_path):
    enter(tmp_path / "out", model="a")
    enter(tmp_path / "out", model="b")
    assert read_run(tmp_path / "out")["identity"] == {"model": "b"}
    for name, is_left in (("out", True), ("new", False)):
        with open_run_folder(tmp_path / name, identity={}) as folder:
            folder.discard()
        assert (tmp_path / name).exists() == is_left


def test_the_free_name_fits_the_filesystem(tmp_path):
    taken = tmp_path / ("n" * 255)
    taken.mkdir()
    assert len(free_name(taken).name) == 255
    free_name(taken).mkdir()
