"""Event files hold whole lines, whatever happens to the writer."""

import json
import os
import signal
import subprocess
import sys

import pytest

from poros import failpoints
from poros.errors import PorosStorageError
from poros.event_log import EventLog, last_line, read_events, read_lines
from poros.events import MemoryMapped, PlanMade, PlanMeasured, PlanShrunk, RunFailed, Warned

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from poros.errors import PorosStorageError
from poros.event_log import EventLog
from poros.events import Warned
log = EventLog(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    log.append(Warned(code="x", message="y" * 500))
"""


def warned(number: int) -> Warned:
    return Warned(code=str(number), message="m")


def test_lines_come_back_as_events_numbered_from_zero(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(warned(0))
    with EventLog(path) as log:
        log.append(warned(1))
    assert list(read_events(path)) == [warned(0), warned(1)]
    assert [json.loads(line)["seq"] for line in read_lines(path)] == [0, 1]


def test_a_memory_map_comes_back_as_it_was(tmp_path):
    mapped = MemoryMapped(
        step=2, path="memory_map.json", ran_out=False, activations_seen=True, peak_bytes=3,
        reserved_bytes=4, device_bytes={"slots of the ring": 3}, host_bytes={"blocks": 9},
    )  # fmt: skip
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(mapped)
    assert list(read_events(tmp_path / "events.jsonl")) == [mapped]


def test_plans_and_what_was_measured_come_back_as_they_were(tmp_path):
    made = PlanMade(
        num_blocks=4, resident=[1, 3], num_slots=2, on_host=["head"], head_prefetch=True,
        num_rows=64, budget_bytes=None, peak_bytes=5, peak_phase="loss", device_bytes=6,
        copied_bytes=7, step_s=None, bottleneck="unknown", from_measured=False,
    )  # fmt: skip
    measured = PlanMeasured(
        step=3, peak_bytes=5, reserved_bytes=6, step_s=0.5, expected_peak_bytes=4,
        expected_step_s=0.25,
    )  # fmt: skip
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(made)
        log.append(measured)
    assert list(read_events(tmp_path / "events.jsonl")) == [made, measured]


def test_a_smaller_plan_comes_back_as_it_was(tmp_path):
    shrunk = PlanShrunk(
        step=3, phase="backward", change="head to the host", plan={"num_slots": 2},
        asked_bytes=1, in_use_bytes=2, cap_bytes=3,
    )  # fmt: skip
    with EventLog(tmp_path / "events.jsonl") as log:
        log.append(shrunk)
    assert list(read_events(tmp_path / "events.jsonl")) == [shrunk]


def test_a_torn_tail_is_ignored_by_readers_and_cut_by_the_next_writer(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(warned(0))
    with path.open("ab") as file:
        file.write(b'{"event": "warn')
    assert list(read_events(path)) == [warned(0)]
    with EventLog(path) as log:
        log.append(warned(1))
    assert list(read_events(path)) == [warned(0), warned(1)]


def test_a_resumed_run_cuts_to_the_stored_offset(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(warned(0))
        offset = log.sync()
        log.append(warned(1))
    with EventLog(path, keep_bytes=offset) as log:
        log.append(warned(2))
    assert list(read_events(path)) == [warned(0), warned(2)]


def test_a_full_disk_loses_no_line(tmp_path, monkeypatch):
    failpoints.reset()
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        monkeypatch.setenv(failpoints.VARIABLE, "events.write:enospc")
        log.append(warned(0))
        with pytest.raises(PorosStorageError, match="disk full"):
            log.sync()
        monkeypatch.delenv(failpoints.VARIABLE)
        log.append(warned(1))
        assert log.sync() == path.stat().st_size
    assert list(read_events(path)) == [warned(0), warned(1)]


def test_how_a_run_ended_is_known_on_a_full_disk_until_it_goes_on(tmp_path, monkeypatch):
    failpoints.reset()
    path = tmp_path / "events.jsonl"
    ended = RunFailed(
        step=3, type="PorosStorageError", code="E-storage", message="disk full", where="",
        remediation="free some", exit_code=8,
    )  # fmt: skip
    with EventLog(path) as log:
        log.append(warned(0))
        assert log.trouble == ""
        monkeypatch.setenv(failpoints.VARIABLE, "events.write:enospc")
        log.append(warned(1))
        line = log.append(ended)
        assert log.trouble == "disk full"
    assert path.read_text().count("\n") == 1
    assert last_line(path) == line
    assert list(read_events(path)) == [warned(0), ended]
    monkeypatch.delenv(failpoints.VARIABLE)
    with EventLog(path) as log:
        assert list(read_events(path)) == [warned(0)]
        log.append(warned(2))
    assert list(read_events(path)) == [warned(0), warned(2)]
    assert list(tmp_path.iterdir()) == [path]


def test_undecodable_bytes_in_a_path_stay_strict_json(tmp_path):
    path = tmp_path / "events.jsonl"
    name = os.fsdecode(b"caf\xe9")
    with EventLog(path) as log:
        log.append(Warned(code="x", message=name))
    assert [event.message for event in read_events(path)] == [name]


def test_readers_beside_a_killed_writer_see_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    command = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        num_seen = 0
        while num_seen < 500:
            seen = list(read_events(path))
            assert all(event.message == "y" * 500 for event in seen)
            num_seen = len(seen)
        writer.send_signal(signal.SIGKILL)
    events = list(read_events(path))
    with EventLog(path) as log:
        log.append(warned(0))
    assert len(list(read_events(path))) == len(events) + 1
