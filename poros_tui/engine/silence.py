"""Asks a run that goes on but writes no events why: a full disk takes none."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from poros_tui.engine.commands import Watch

SILENT_S = 7.0
"""The engine writes something every five seconds."""


class Silence:
    """For one who follows an event file and shows nothing else; for one thread."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        """Nothing is asked while events come.

        Args:
            folder: The run's.
            tell: Called with a sentence, once each time that the run begins to be unable to write.
        """
        self._folder, self._tell = folder, tell
        self._heard_s = time.monotonic()
        self._watch: Watch | None = None
        self._was_told = False

    def heard(self) -> None:
        """An event came."""
        self._heard_s, self._was_told = time.monotonic(), False
        self.close()

    def look(self) -> None:
        """Ask, if it is time to; never waits."""
        if self._was_told or time.monotonic() - self._heard_s < SILENT_S:
            return
        if self._watch is None:  # the engine makes samples only for who watches
            self._watch = Watch(self._folder)
        sample = self._watch.latest
        if sample is not None and sample.unwritten:
            self._was_told = True
            self._tell(
                f"the run can't write what it does: {sample.unwritten}; it goes on, make room"
            )
            self.close()

    def close(self) -> None:
        """Ask no more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
