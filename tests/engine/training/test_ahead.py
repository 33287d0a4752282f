"""What runs beside the reading of the data ends by itself and hides no failure."""

import threading

import torch

from poros.training.ahead import Ahead, start_device


def test_the_work_runs_beside_and_can_be_waited_for():
    go, done = threading.Event(), []
    ahead = Ahead(lambda: done.append(go.wait(30)))
    assert done == []
    go.set()
    ahead.wait()
    assert done == [True]


def test_a_failure_is_left_to_the_call_that_needs_the_effect():
    calls = []

    def fails():
        calls.append(threading.current_thread().daemon)
        raise OSError("gone")

    Ahead(fails).wait()
    assert calls == [True]


def test_the_cpu_needs_no_start():
    start_device(torch.device("cpu"))
    assert not torch.cuda.is_initialized()
