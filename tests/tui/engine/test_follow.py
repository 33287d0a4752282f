"""Following files that grow, are cut, replaced and removed while they are read."""

import json
import threading
import time

import pytest

from poros import events
from poros.event_log import EventLog
from poros.events import Heartbeat, Warned
from poros_tui.engine import follow
from poros_tui.engine.follow import EventReader, Follower, last_lines
from tests.tui.made_steps import made_step

LIMIT_S = 20


def write(path, numbers, **how):
    with EventLog(path, **how) as log:
        for number in numbers:
            log.append(made_step(number))


def steps(batch):
    return [line.event.step for line in batch.lines]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


@pytest.fixture
def follower(path):
    follower = Follower(path)
    yield follower
    follower.close()


def test_lines_come_as_they_are_written_and_the_file_may_come_late(path, follower):
    assert follower.poll() == follow.Batch()
    write(path, [1, 2])
    first = follower.poll()
    assert steps(first) == [1, 2]
    assert not first.restarted
    assert [line.seq for line in first.lines] == [0, 1]
    assert "".join(line.text for line in first.lines) == path.read_text()
    assert abs(first.lines[0].time_s - time.time()) < 60
    assert follower.poll() == follow.Batch()
    write(path, [3])
    assert steps(follower.poll()) == [3]


def test_a_torn_tail_waits_for_its_end(path, follower):
    line = events.to_line(made_step(1, loss=float("nan")), seq=0, time_s=1.0).encode()
    path.write_bytes(line[:30])
    assert follower.poll() == follow.Batch()
    path.write_bytes(line + line[:1])
    batch = follower.poll()
    assert steps(batch) == [1]
    assert batch.lines[0].event.loss != batch.lines[0].event.loss


@pytest.mark.parametrize("num_after", [0, 1, 9])
def test_a_resumed_run_that_cuts_its_file_is_read_from_the_start(path, follower, num_after):
    """Shorter than before, as long, or longer by the time that we look."""
    write(path, [1, 2, 3, 4])
    keep_bytes = len(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert steps(follower.poll()) == [1, 2, 3, 4]
    after = list(range(3, 3 + num_after))
    write(path, after, keep_bytes=keep_bytes)
    batch = follower.poll()
    assert batch.restarted
    assert steps(batch) == [1, 2, *after]
    assert not follower.poll().restarted


def test_a_file_that_is_cut_during_a_look_is_noticed(path, follower, monkeypatch):
    write(path, [1, 2, 3])
    follower.poll()
    read = follower._read

    def cut_first(most_bytes):
        monkeypatch.undo()
        write(path, [2, 3, 4, 5], keep_bytes=path.read_bytes().find(b"\n") + 1)
        return read(most_bytes)

    monkeypatch.setattr(follower, "_read", cut_first)
    batch = follower.poll()
    assert (steps(batch), batch.restarted) == ([1, 2, 3, 4, 5], True)


def test_a_new_file_of_the_name_follows_what_was_left_of_the_old_one(path, follower):
    write(path, [1])
    assert steps(follower.poll()) == [1]
    write(path, [2])
    path.rename(path.with_name("old"))
    write(path, [7, 8])
    batch = follower.poll()
    assert (steps(batch), batch.restarted) == ([2], False)
    batch = follower.poll()
    assert (steps(batch), batch.restarted) == ([7, 8], True)


def test_what_cannot_be_read_in_the_place_of_a_file_ends_no_look(path, follower):
    path.mkdir()
    assert [follower.poll(), follower.poll()] == [follow.Batch()] * 2
    path.rename(path.with_name("a folder"))
    write(path, [1])
    assert steps(follower.poll()) == [1]  # at once: a folder is never opened


def test_what_a_refused_start_wrote_before_it_removed_its_folder_is_read(path, follower):
    write(path, [1])
    follower.poll()
    write(path, [2])
    path.unlink()
    assert steps(follower.poll()) == [2]
    assert follower.poll() == follow.Batch()


def test_damaged_lines_and_events_of_a_later_version_are_passed_over(path, follower):
    write(path, [1])
    later = {"event": "of_tomorrow", "v": 1, "seq": 1, "time_s": 1.0}
    bad = [b"{}", b"nonsense", b"\xff", b'{"event": "warned", "seq": 2, "time_s": 1}', b""]
    with path.open("ab") as file:
        file.write(json.dumps(later).encode() + b"\n" + b"\n".join(bad) + b"\n")
    write(path, [2])
    batch = follower.poll()
    assert steps(batch) == [1, 2]
    assert batch.num_damaged == len(bad)
    assert not batch.restarted


def test_a_long_file_is_read_in_pieces_and_a_long_line_whole(path, follower):
    with EventLog(path) as log:
        for number in range(70):
            log.append(made_step(number))
        log.append(Warned(code="W-x", message="m" * 10_000))
        log.append(made_step(70))
    seen, num_looks = [], 0
    while True:
        batch = follower.poll(most_bytes=2_000)
        seen += [getattr(line.event, "step", None) for line in batch.lines]
        num_looks += 1
        if not batch.more:
            break
    assert seen == [*range(70), None, 70]
    assert num_looks > 10


def test_a_reading_thread_keeps_order_and_stops_when_nobody_drains(path, monkeypatch):
    monkeypatch.setattr(follow, "MOST_WAITING", 2_000)
    monkeypatch.setattr(follow, "MOST_BYTES", 50_000)
    monkeypatch.setattr(Follower.poll, "__defaults__", (50_000,))
    lines = [
        events.to_line(Heartbeat(step=n, phase="train", host_rss_bytes=1, device_used_bytes=0,
        device_total_bytes=0), seq=n, time_s=1.0) for n in range(6_000)
    ]  # fmt: skip
    path.write_text("".join(lines))
    reader = EventReader(path, every_s=0.01)
    until_s = time.monotonic() + LIMIT_S
    while len(reader._waiting) <= 2_000:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(reader._waiting) < 2_000 + 2 * 50_000 // len(lines[0])
    assert not reader.caught_up
    seen = []
    while len(seen) < 6_000:
        assert time.monotonic() < until_s
        batch = reader.drain(500)
        assert len(batch.lines) <= 500
        seen += steps(batch)
    assert seen == list(range(6_000))
    write(path, [1], keep_bytes=0)
    restarted = []
    while not restarted or not restarted[-1].lines:
        assert time.monotonic() < until_s
        restarted.append(reader.drain())
    assert [batch.restarted for batch in restarted].count(True) == 1
    assert steps(restarted[-1]) == [1]
    reader.close()
    reader._thread.join(LIMIT_S)
    assert not reader._thread.is_alive()


def test_a_reader_beside_a_fast_writer_misses_and_doubles_nothing(path, follower):
    """Fault 35."""

    def run():
        write(path, range(3_000))

    writer = threading.Thread(target=run)
    writer.start()
    seen = []
    while writer.is_alive() or not seen or seen[-1] != 2_999:
        seen += steps(follower.poll())
    writer.join()
    assert seen == list(range(3_000))


def test_the_last_lines_of_a_log(tmp_path):
    path = tmp_path / "stdout.log"
    assert last_lines(path) == []
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(100)) + b"torn \xff")
    assert last_lines(path, 2) == ["line 99", "torn \\xff"]
    assert len(last_lines(path)) == 30


def test_a_folder_of_the_name_ends_no_reading_and_is_told(path, follower):
    write(path, [1])
    assert steps(follower.poll()) == [1]
    path.unlink()
    assert follower.poll() == follow.Batch()
    assert follower.trouble == "no such file or directory"
    path.mkdir()
    assert follower.poll() == follow.Batch()
    assert follower.trouble == "it is no file"
    path.rmdir()
    write(path, [2, 3])
    while not (batch := follower.poll()).lines:
        assert batch.restarted
    assert steps(batch) == [2, 3]
    assert follower.trouble == ""
