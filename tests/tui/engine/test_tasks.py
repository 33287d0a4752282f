"""Commands in child processes: their answers line by line, their errors, their end."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from poros_tui.engine import tasks
from poros_tui.engine.tasks import Task

ROOT = Path(__file__).parents[3]
LIMIT_S = 30


@pytest.fixture(autouse=True)
def path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "engine"), str(ROOT)]))


@pytest.fixture
def script(monkeypatch):
    """Makes the next task run Python code in place of `poros`."""

    def use(code):
        monkeypatch.setattr(tasks, "PROGRAM", (sys.executable, "-u", "-c", code))

    return use


def wait_for(condition):
    until_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < until_s, "it did not come"
        time.sleep(0.01)
    return found


def test_a_document_is_the_answer_and_an_error_is_a_line():
    good = Task(["help", "exit-codes", "--json"])
    bad = Task(["check", "./no/such/folder", "--json"])
    result = good.wait(LIMIT_S)
    assert (result.state, result.exit_code, result.error) == ("done", 0, "")
    assert result.document["0"] == "All went well."
    assert good.drain() == [result.document]
    assert good.drain() == []
    result = bad.wait(LIMIT_S)
    assert result.exit_code == 4
    assert result.error.startswith("no such folder")
    assert not result.error.startswith("poros")


def test_lines_come_while_the_command_runs_and_what_is_no_json_is_left_out(script):
    script(
        "import json, sys\n"
        "print(json.dumps({'row': 1})); print('noise'); print('NaN-ish {')\n"
        "for line in sys.stdin: print(json.dumps({'heard': json.loads(line)}))\n"
        "print('last words', file=sys.stderr)\n"
    )
    task = Task([], interactive=True)
    wait_for(lambda: task._records)
    assert task.drain() == [{"row": 1}]
    assert not task.done
    task.send({"text": "ä"})
    wait_for(lambda: len(task._records) > 1)
    assert task.drain() == [{"heard": {"text": "ä"}}]
    task.hang_up()
    result = task.wait(LIMIT_S)
    assert (result.exit_code, result.stderr) == (0, ("last words",))
    assert result.records == ({"row": 1}, {"heard": {"text": "ä"}})


# A command that has started another, and neither goes when it is asked to.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
os.write(1, b'%d\\n' % os.getpid())
time.sleep(600)
"""


@pytest.mark.parametrize(("limit_s", "state"), [(None, "cancelled"), (2.0, "timed out")])
def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(
    script, monkeypatch, limit_s, state
):
    monkeypatch.setattr(tasks, "_GRACE_S", 0.2)
    script(STUBBORN)
    task = Task([], limit_s=limit_s)
    pids = wait_for(lambda: task._records if len(task._records) == 2 else None)
    if limit_s is None:
        task.cancel()
    result = task.wait(LIMIT_S)
    assert (result.state, result.exit_code, result.error != "") == (state, None, True)
    wait_for(lambda: not any(is_there(pid) for pid in pids))
    task.cancel()
    assert task.result.state == state


def is_there(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_command_that_a_signal_ended_and_one_that_crashed_are_told(script):
    script(f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})")
    killed = Task([])
    script("raise SystemExit('it broke')")
    broken = Task([])
    script("import os; os._exit(3)")
    silent = Task([])
    assert killed.wait(LIMIT_S).error == "the command was ended by SIGKILL"
    assert broken.wait(LIMIT_S).error == "it broke"
    assert silent.wait(LIMIT_S).error == "the command ended with exit code 3"
    assert silent.result.document is None
    assert json.dumps(silent.result.records) == "[]"
