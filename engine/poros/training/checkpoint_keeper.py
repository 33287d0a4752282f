"""When a checkpoint can't be written, and which old ones go."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from poros import atomic, failpoints
from poros.errors import PorosStorageError
from poros.events import CheckpointFailed, CheckpointSaved, Event
from poros.training.resume import checkpoint_name, oldest_to_remove

MOST_FAILURES_IN_A_ROW = 3


class CheckpointKeeper:
    """Writes the checkpoints of one run.

    Args:
        folder: Where they go.
        keep: How many stay, at least 2.
        write: Writes one into a folder and returns its size.
        needed_bytes: About what one takes.
        emit: Takes the events.
        saved_step: The step of the checkpoint that the run goes on from.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        write: Callable[[Path], int],
        needed_bytes: int,
        emit: Callable[[Event], None],
        saved_step: int | None = None,
    ) -> None:
        """No failures yet."""
        self._folder = folder
        self._keep = keep
        self._write = write
        self._needed_bytes = needed_bytes
        self._emit = emit
        self._num_failures = 0
        self.saved_step = saved_step

    def save(self, step: int, *, final: bool = False) -> None:
        """Write the checkpoint of ``step``, unless it is there.

        Raises:
            PorosStorageError: The disk refused the final one, or three in a row.
        """
        if self.saved_step == step:
            return
        started_s = time.monotonic()
        path = self._folder / checkpoint_name(step)
        try:
            size_bytes = self._write(path)
        except PorosStorageError as error:
            self._fail(step, error)
            if final or self._num_failures >= MOST_FAILURES_IN_A_ROW:
                raise
            return
        self._num_failures = 0
        self.saved_step = step
        duration_s = time.monotonic() - started_s
        self._emit(
            CheckpointSaved(step=step, path=str(path), size_bytes=size_bytes, duration_s=duration_s)
        )
        for old in oldest_to_remove(self._folder, self._keep):
            failpoints.hit("checkpoint.rotate")
            atomic.remove_dir(old)

    def _fail(self, step: int, error: PorosStorageError) -> None:
        self._num_failures += 1
        self._emit(
            CheckpointFailed(
                step=step,
                reason=str(error),
                needed_bytes=self._needed_bytes,
                free_bytes=atomic.free_bytes(self._folder),
            )
        )
