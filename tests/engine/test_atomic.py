"""Files and folders appear whole or not at all."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from poros import atomic, failpoints
from poros.errors import PorosOutputError, PorosStorageError

WRITE_ONE_FOLDER = """
import sys
from pathlib import Path
from poros.atomic import atomic_dir
final = Path(sys.argv[1])
with atomic_dir(final, manifest="manifest.json") as temp:
    (temp / "inner").mkdir()
    (temp / "inner" / "data").write_bytes(b"x" * 1000)
"""


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_writer(final: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", WRITE_ONE_FOLDER, str(final)]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, timeout=60)


def test_a_folder_appears_with_a_manifest_of_its_files(tmp_path):
    about = {"format": 1}
    with atomic.atomic_dir(tmp_path / "done", manifest="m.json", about=about) as temp:
        (temp / "a").write_bytes(b"abc")
        assert names_in(tmp_path) == [temp.name]
        about["step"] = 3
    manifest = json.loads((tmp_path / "done" / "m.json").read_text())
    sha256 = atomic.sha256_of(tmp_path / "done" / "a")
    assert manifest == {"format": 1, "step": 3, "files": {"a": {"num_bytes": 3, "sha256": sha256}}}
    assert names_in(tmp_path) == ["done"]


def test_a_body_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), atomic.atomic_dir(tmp_path / "done") as temp:
        (temp / "a").write_text(str(1 / 0))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("action", ["enospc", "eio"])
@pytest.mark.parametrize("point", [p for p in failpoints.POINTS if p.startswith("atomic.")])
def test_a_failing_disk_is_one_error_and_leaves_the_old_file(tmp_path, monkeypatch, point, action):
    failpoints.reset()
    (tmp_path / "old").write_text("old")
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}:{action}")
    with (
        pytest.raises(PorosStorageError) as caught,
        atomic.atomic_dir(tmp_path / "new", manifest="m", needed_bytes=12345) as temp,
    ):
        (temp / "a").write_text("new")
    assert caught.value.exit_code == 8
    assert "needed 12345 bytes, free " in str(caught.value)
    assert ("disk full" in str(caught.value)) == (action == "enospc")
    # After the rename the folder is whole, and only its parent's fsync failed.
    expected = ["new", "old"] if point == "atomic.parent_fsync" else ["old"]
    assert names_in(tmp_path) == expected


def test_a_network_error_in_the_body_is_not_called_a_disk_error(tmp_path):
    with pytest.raises(ConnectionResetError), atomic.atomic_dir(tmp_path / "new"):
        raise ConnectionResetError(104, "reset by peer")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_rights_are_not_called_a_failing_disk(tmp_path, number):
    error = OSError(number, os.strerror(number), str(tmp_path / "x"))
    found = atomic.storage_error(error, tmp_path / "x", needed_bytes=5)
    assert type(found) is PorosOutputError
    assert found.message == f"can't be written: {os.strerror(number)}"
    assert "rights" in found.remediation


def test_safetensors_disk_full_text_is_understood(tmp_path):
    error = type("SafetensorError", (Exception,), {})(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )
    found = atomic.storage_error(error, tmp_path / "x")
    assert found is not None
    assert found.message.startswith("disk full")


@pytest.mark.parametrize("point", [p for p in failpoints.POINTS if p.startswith("atomic.")])
def test_a_kill_at_every_point_leaves_a_whole_folder_or_none(tmp_path, point):
    result = run_writer(tmp_path / "done", POROS_FAILPOINT=f"{point}:kill")
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert ("done" in names_in(tmp_path)) == (point == "atomic.parent_fsync")
    atomic.sweep_temps(tmp_path)
    assert names_in(tmp_path) in ([], ["done"])


def test_the_writes_reach_the_disk_in_order(tmp_path):
    assert shutil.which("strace"), "this test needs strace (apt-get install strace)"
    trace = tmp_path / "trace"
    calls = "trace=fsync,rename,renameat,renameat2"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(trace)]
    final = tmp_path / "done"
    command += [sys.executable, "-c", WRITE_ONE_FOLDER, str(final)]
    subprocess.run(command, check=True, timeout=60)
    order = []
    for line in trace.read_text().splitlines():
        if "fsync(" in line:
            path = line.split("<", 1)[1].split(">", 1)[0].removeprefix(str(tmp_path))
            order.append("/".join(["", "T", *path.split("/")[2:]]) if ".tmp-" in path else path)
        elif "rename" in line and ".tmp-" in line:
            order.append("rename")
    assert order == ["/T/inner/data", "/T/manifest.json", "/T/inner", "/T", "rename", ""]


def test_sweeping_leaves_living_writers_alone_unless_the_folder_is_ours(tmp_path):
    mine = tmp_path / f"{atomic.TEMP_PREFIX}{os.getpid()}-aa"
    dead = tmp_path / f"{atomic.TEMP_PREFIX}999999999-bb"
    mine.mkdir()
    dead.mkdir()
    assert atomic.sweep_temps(tmp_path) == [dead]
    assert atomic.sweep_temps(tmp_path, owned=True) == [mine]


def test_an_existing_folder_is_replaced_or_kept_as_asked(tmp_path):
    final = tmp_path / "f"
    for text, if_exists in (("1", "error"), ("2", "replace"), ("3", "keep")):
        with atomic.atomic_dir(final, if_exists=if_exists) as temp:
            (temp / "a").write_text(text)
    assert (final / "a").read_text() == "2"
    with pytest.raises(PorosStorageError), atomic.atomic_dir(final) as temp:
        (temp / "a").write_text("4")
    assert (final / "a").read_text() == "2"
    assert names_in(tmp_path) == ["f"]


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
    final = tmp_path / ("n" * 255)
    atomic.write_file(final, "one")
    atomic.write_file(final, b"two")
    assert final.read_text() == "two"
    assert names_in(tmp_path) == [final.name]
