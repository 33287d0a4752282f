"""What a running trainer can be told, from any thread: stop, checkpoint, pause, resume."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """What to do between two steps."""

    stop: str | None = None
    """Why to stop after a checkpoint; None: go on."""
    checkpoint: bool = False


class StopNow(Exception):  # noqa: N818  an order, not an error
    """Raised in the worker when it must end without finishing its step."""


class Control:
    """Orders waiting for the trainer, which asks with `poll` between steps."""

    def __init__(self) -> None:
        """No orders."""
        self._changed = threading.Condition()
        self._stop: str | None = None
        self._stop_now = False
        self._checkpoint = False
        self._paused = False
        self._waiting = False

    def stop(self, reason: str = "asked to stop") -> None:
        """Finish the step, checkpoint, end. The first reason is kept."""
        with self._changed:
            self._stop = self._stop or reason
            self._changed.notify_all()

    def stop_now(self) -> None:
        """End at the next micro-batch, without a checkpoint."""
        with self._changed:
            self._stop_now = True
            self._changed.notify_all()

    def checkpoint(self) -> None:
        """Checkpoint after this step."""
        with self._changed:
            self._checkpoint = True
            self._changed.notify_all()

    def pause(self) -> None:
        """Wait after this step."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """Go on after a pause."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    @property
    def is_stopping(self) -> bool:
        """A stop was asked for."""
        return self._stop is not None or self._stop_now

    @property
    def is_paused(self) -> bool:
        """A pause was asked for."""
        return self._paused

    @property
    def is_waiting(self) -> bool:
        """The trainer stands still, in a pause."""
        return self._waiting

    def poll(self) -> Request:
        """Take the orders; wait here while paused, unless there is one to carry out.

        Raises:
            StopNow: `stop_now` was called.
        """
        with self._changed:
            try:
                while self._paused and not (self._stop or self._stop_now or self._checkpoint):
                    self._waiting = True
                    self._changed.wait()
            finally:
                self._waiting = False
            self._raise_if_stopped_now()
            request = Request(stop=self._stop, checkpoint=self._checkpoint)
            self._checkpoint = False
            return request

    def check(self) -> None:
        """Between micro-batches: raise `StopNow` when asked to end at once."""
        with self._changed:
            self._raise_if_stopped_now()

    def _raise_if_stopped_now(self) -> None:
        if self._stop_now:
            raise StopNow
