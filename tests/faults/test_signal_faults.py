"""Faults 31 to 35: signals, terminals, closed streams; more in training/test_signals.py."""

import os
import pty
import signal
import time

import pytest

from poros.event_log import read_events
from poros.events import StepFinished
from poros.training.checkpoint import verify
from tests.engine.training.tiny_run import results_of
from tests.faults.bench import expect


def whole(world):
    return results_of(world.folder / "whole" / "out")


@pytest.mark.parametrize(
    ("plant", "code"),
    [("sigint_in_step_3", 130), ("sigterm_in_step_3", 143), ("sighup_in_step_3", 129)],
)
def test_a_signal_finishes_the_step_saves_and_the_resumed_run_is_exact(plant, code, bench, world):
    """Fault 31."""
    bench.plant = plant
    ended = bench.run()
    expect(ended, code, num_errors=0)
    assert "saved step 3; resume with the same command" in ended.stdout
    assert bench.checkpoints() == [2, 3]
    bench.plant = ""
    expect(bench.run(), 0, num_errors=0)
    assert results_of(bench.out) == whole(world)


@pytest.mark.parametrize("point", ["checkpoint.adapter", "atomic.written", "events.write"])
def test_a_signal_inside_a_save_lets_it_end(point, bench, world):
    bench.environ |= {"SEND": "SIGTERM", "SEND_AT": point}
    bench.plant = "signal_in_second_save"
    expect(bench.run(), 143, num_errors=0)
    assert bench.checkpoints()
    bench.plant = ""
    expect(bench.run(), 0, num_errors=0)
    assert results_of(bench.out) == whole(world)


def test_a_second_ctrl_c_stops_at_once_and_saves_nothing(bench):
    bench.plant = "sigint_twice_in_step_3"
    started_s = time.monotonic()
    ended = bench.run()
    expect(ended, 130, num_errors=0)
    assert time.monotonic() - started_s < 30
    assert bench.checkpoints() == [2]
    assert not list(bench.out.rglob(".tmp-*"))


def test_a_second_ctrl_c_during_the_save_leaves_no_checkpoint(bench):
    bench.settings |= {"max_steps": 40, "save_steps": 100}
    bench.environ["POROS_FAILPOINT"] = "train.step:sleep=0.2,checkpoint.begin:sleep=60"
    trial = bench.start()
    trial.wait_for_step(2)
    trial.send(signal.SIGINT)
    time.sleep(1)  # the step is over by now, and the save lasts for a minute
    trial.send(signal.SIGINT)
    expect(trial.wait(30), 130, num_errors=0)
    assert bench.checkpoints() == []


@pytest.mark.parametrize(("plant", "flags"), [
    ("nohup_and_sighup", []),
    ("sighup_in_step_3", ["--survive-hangup"]),
])  # fmt: skip
def test_a_hangup_that_is_ignored_stays_ignored(plant, flags, bench):
    """Fault 32."""
    bench.plant, bench.flags = plant, flags
    expect(bench.run(), 0, num_errors=0)
    assert bench.checkpoints() == [4, 6]


@pytest.mark.parametrize("stream", ["/dev/full", "closed pipe"])
@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["lines", "json"])
def test_a_stdout_that_takes_nothing_never_stops_a_run(stream, flags, bench, world):
    """Fault 34."""
    bench.stdout, bench.flags = stream, flags
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert ended.stderr == ""
    assert results_of(bench.out) == whole(world)


def test_json_on_stdout_is_the_event_file(bench):
    bench.settings |= {"max_steps": 3}
    bench.flags = ["--json"]
    ended = bench.run()
    expect(ended, 0, num_errors=0)
    assert ended.stdout == (bench.out / "events.jsonl").read_text()


@pytest.mark.parametrize(("stream", "code"), [("/dev/full", 8), ("closed pipe", 141)])
def test_a_command_that_only_prints_tells_by_its_code_that_it_could_not(stream, code, bench):
    bench.stdout = stream
    ended = bench.run("schema")
    expect(ended, code, num_errors=int(code == 8))


def test_an_error_with_nowhere_to_go_keeps_its_exit_code(bench):
    bench.settings["seed"] = "x"
    bench.stderr = "/dev/full"
    assert bench.run().code == 2
    bench.stderr = "closed pipe"
    assert bench.run().code == 2


@pytest.mark.parametrize("rows_columns", [(0, 0), (1, 1), (3, 10)])
def test_a_terminal_of_any_size_is_enough(rows_columns, bench):
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *rows_columns, 0, 0))
    bench.stdout = os.ttyname(slave)
    bench.settings |= {"max_steps": 2, "save_steps": 2}
    bench.environ["TERM"] = "dumb" if rows_columns == (3, 10) else "xterm"
    trial = bench.start()
    os.set_blocking(master, False)
    shown = b""
    until_s = time.monotonic() + 60
    while b"poros_state" not in shown and b"PeftModel" not in shown:
        assert time.monotonic() < until_s, shown
        try:
            shown += os.read(master, 4096)
        except BlockingIOError:
            time.sleep(0.02)
    expect(trial.wait(), 0, num_errors=0)
    assert (b"\x1b" in shown) == (rows_columns != (3, 10))
    os.close(slave)
    os.close(master)


def test_a_terminal_that_closes_saves_and_ends(bench):
    """Fault 32; the run goes on writing into nothing until it is told."""
    master, slave = pty.openpty()
    bench.stdout = bench.stderr = os.ttyname(slave)
    bench.environ["POROS_FAILPOINT"] = "train.step:sleep=0.3@3+"
    trial = bench.start()
    trial.wait_for_step(2)
    os.close(slave)
    os.close(master)
    trial.send(signal.SIGHUP)
    assert trial.wait().code == 129
    assert verify(bench.out / "checkpoints" / f"step-{bench.last_step:06d}")


def test_a_torn_last_line_and_a_refused_write_cost_no_event(bench, world):
    """Fault 35."""
    bench.environ["POROS_FAILPOINT"] = "events.write:enospc@12,train.step:kill@5"
    assert bench.run().code == -9
    with (bench.out / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "step_fin')
    assert bench.checkpoints()
    del bench.environ["POROS_FAILPOINT"]
    expect(bench.run(), 0, num_errors=0)
    found = [e.step for e in read_events(bench.out / "events.jsonl") if isinstance(e, StepFinished)]
    assert found == [1, 2, 3, 4, 5, 6]
    assert results_of(bench.out) == whole(world)
