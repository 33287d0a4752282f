"""Textual's driver for terminals: it may be stopped unasked, get any bytes, lose its terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from typing import Any

from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.geometry import Size

HUNG_UP = 129
"""Exit code: 128 + SIGHUP, also where that signal does not come."""


class ContinuedDriver(LinuxDriver):
    """Stops before it starts a second time.

    SIGTSTP is told and gives the terminal back; SIGSTOP is not. Each SIGCONT starts the driver, and
    one that still ran would leave threads behind that keep the process at its end, and would take
    the raw terminal for the one to give back (textual 8.2).
    """

    _is_on = False
    _is_stopping = False

    def __init__(self, *words: Any, **named: Any) -> None:
        """As Textual's, but told of SIGTSTP and SIGCONT by the loop.

        Both write to the thread that draws. Within a signal that may come while the app itself
        writes to it and holds its lock: it would wait for ever (textual 8.2).
        """
        super().__init__(*words, **named)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._sigtstp_application)
        loop.add_signal_handler(signal.SIGCONT, self._sigcont_application)

    def start_application_mode(self) -> None:
        """Take the terminal; give it back first if it is ours already."""
        if self._is_stopping:  # continued again meanwhile: it starts right after
            return
        is_continued, attributes = self._is_on, self.attrs_before
        if is_continued:
            self._is_stopping = True
            self.suspend_application_mode()
            self._is_stopping = False
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._is_on = True
        if is_continued:
            self.attrs_before = attributes
            self.send_message(self.SignalResume())

    def size_now(self) -> Size:
        """Columns and rows of the terminal, whatever signals said."""
        return Size(*shutil.get_terminal_size())

    def stop_application_mode(self) -> None:
        """Give the terminal back."""
        self._is_on = False
        super().stop_application_mode()

    @property
    def is_gone(self) -> bool:
        """The terminal hung up."""
        return self.input_tty and not os.isatty(self.fileno)

    def run_input_thread(self) -> None:
        """Read keys until the end; what can't be understood, such as Latin-1, is passed over."""
        while not self.exit_event.is_set():
            try:
                super().run_input_thread()
            except (ValueError, OverflowError):
                continue  # no UTF-8, or the number of a key that there can't be
            except OSError:
                return  # it is gone


def driver_for(found: type[Driver]) -> type[Driver]:
    """The driver to use where Textual has found this one."""
    return ContinuedDriver if found is LinuxDriver else found
