"""Orders reach the trainer between steps, from any thread."""

import contextlib
import threading

import pytest

from poros.control import Control, Request, StopNow


def test_nothing_is_asked_for_at_first():
    assert Control().poll() == Request()


def test_a_checkpoint_is_asked_for_once_and_the_first_stop_stays():
    control = Control()
    control.checkpoint()
    control.stop("SIGTERM")
    control.stop("SIGINT")
    assert control.poll() == Request(stop="SIGTERM", checkpoint=True)
    assert control.poll() == Request(stop="SIGTERM")


def test_stop_now_interrupts_the_step():
    control = Control()
    control.check()
    control.stop_now()
    for ask in (control.check, control.poll):
        with pytest.raises(StopNow):
            ask()


@pytest.mark.parametrize("order", ["resume", "stop", "stop_now", "checkpoint"])
def test_a_paused_trainer_waits_for_the_next_order(order):
    control = Control()
    control.pause()
    woke = threading.Event()

    def wait():
        with contextlib.suppress(StopNow):
            control.poll()
        woke.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woke.wait(0.1)
    getattr(control, order)()
    assert woke.wait(5)
    thread.join()
