"""Signals of the process, put into a queue that the main thread reads."""

from __future__ import annotations

import queue
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWatch:
    """While entered, signals go into ``inbox``; the handlers before come back afterwards.

    A signal that is ignored on entry (nohup) stays ignored. Outside the main thread nothing is
    changed, since Python allows it there only.
    """

    def __init__(self, inbox: queue.SimpleQueue[Any], *, survive_hangup: bool) -> None:
        """Nothing is changed yet."""
        # SimpleQueue.put may be called from a handler that interrupted another put or get.
        self._inbox = inbox
        self._ignored = (signal.SIGHUP,) if survive_hangup else ()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalWatch:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in WATCHED:
            before = signal.getsignal(number)
            if before is signal.SIG_IGN:
                continue
            handler = signal.SIG_IGN if number in self._ignored else self._take
            self._before[number] = before
            signal.signal(number, handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give them back."""
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._inbox.put(signal.Signals(number))
