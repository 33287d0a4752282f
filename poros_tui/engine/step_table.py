"""A run's steps as columns of numbers, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poros.events import StepFinished

Column = NDArray[np.float64]

NAMES = (
    "step",
    "loss",
    "grad_norm",
    "learning_rate",
    "duration_s",
    "trained_s",
    "trained_tokens",
    "num_tokens",
    "copied_bytes",
    "copy_wait_s",
    "reserved_bytes",
)
"""`trained_s` and `trained_tokens` are sums from the run's first step on."""

_INDEX = {name: index for index, name in enumerate(NAMES)}
_LOSS = _INDEX["loss"]


class StepTable:
    """Rows in the order of their steps; the oldest half is thinned when there are too many.

    Args:
        max_rows: Most rows kept. Of each four old rows, those with the lowest and the highest loss
            stay, so that spikes do.
    """

    def __init__(self, max_rows: int = 200_000) -> None:
        """No steps."""
        assert max_rows % 8 == 0
        self._max_rows = max_rows
        self._rows = np.empty((256, len(NAMES)))
        self._num_rows = 0
        self.num_steps = 0

    def __len__(self) -> int:
        """How many rows there are."""
        return self._num_rows

    def __getitem__(self, name: str) -> Column:
        """A column; its later rows may be written while it is held, those it shows are not."""
        return self._rows[: self._num_rows, _INDEX[name]]

    def last(self, name: str, default: float = 0.0) -> float:
        """The newest value of a column."""
        return float(self._rows[self._num_rows - 1, _INDEX[name]]) if self._num_rows else default

    def tail(self, name: str, num_rows: int) -> Column:
        """The newest rows of a column, at most so many."""
        return self[name][-num_rows:] if num_rows > 0 else self[name][:0]

    def add(self, event: StepFinished) -> None:
        """Append a step; one that is there already takes those after it away."""
        if self._num_rows and event.step <= self.last("step"):
            self.cut(event.step - 1)
        if self._num_rows == self._max_rows:
            self._thin()
        if self._num_rows == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._num_rows] = (
            event.step,
            event.loss,
            event.grad_norm,
            event.learning_rate,
            event.duration_s,
            self.last("trained_s") + event.duration_s,
            self.last("trained_tokens") + event.num_tokens,
            event.num_tokens,
            event.copied_bytes,
            event.copy_wait_s,
            event.device_reserved_bytes,
        )
        self._num_rows += 1
        self.num_steps += 1

    def cut(self, step: int) -> None:
        """Forget what came after a step, as a run does that goes on from its checkpoint."""
        self._num_rows = int(np.searchsorted(self["step"], step, side="right"))
        # Whoever still holds a column must not see the rows change that it shows.
        self._rows = self._rows.copy()

    def _thin(self) -> None:
        half = self._max_rows // 2
        losses = self._rows[:half, _LOSS].reshape(-1, 4)
        # A loss that is no number is the event of its four: it stays as the highest.
        losses = np.nan_to_num(losses, nan=np.inf, posinf=np.inf)
        pairs = np.stack([losses.argmin(axis=1), losses.argmax(axis=1)], axis=1)
        # Four equal losses: two different rows all the same.
        pairs[pairs[:, 0] == pairs[:, 1]] = (0, 3)
        kept = (np.sort(pairs, axis=1) + np.arange(0, half, 4)[:, None]).ravel()
        self._rows = np.concatenate([self._rows[kept], self._rows[half : self._num_rows]])
        self._num_rows = len(self._rows)
