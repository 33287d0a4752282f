"""Which curve the plot shows, over what, how smooth, and what stands at the cursor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from poros_tui.engine.run_state import RunState
from poros_tui.engine.smoothing import smoothed
from poros_tui.engine.step_table import Column, StepTable
from poros_tui.glyphs import Glyphs
from poros_tui.widgets.plot import Curve, Mark, Picture
from poros_tui.words import count, duration, learning_rate, significant

SMOOTHINGS = {"off": 0.0, "light": 0.7, "medium": 0.9, "strong": 0.98}
AXES = ("steps", "time", "tokens")
QUANTITIES = ("loss", "gradient norm", "learning rate", "tokens/s", "seconds a step")
_FEW_STEPS = 60
_ZOOMS = 10


@dataclass(slots=True)
class View:
    """What of a run the plot shows.

    Attributes:
        smoothing: A key of `SMOOTHINGS`.
        axis: One of `AXES`.
        quantity: One of `QUANTITIES`.
        zoom: Of the x axis, in halvings: 0 shows all there is, 3 an eighth of it.
        middle: Of the window, as a share of all; 1: it follows the newest step.
        cursor: A share of the window; None: no cursor.
    """

    smoothing: str = "medium"
    axis: str = "steps"
    quantity: str = "loss"
    is_log: bool = False
    zoom: int = 0
    middle: float = 1.0
    cursor: float | None = None

    def weight(self, num_steps: int) -> float:
        """Of the smoothing; a short run is smoothed less, or its curve would lag behind."""
        weight = SMOOTHINGS[self.smoothing]
        return min(weight, 1.0 - 8.0 / max(16, num_steps)) if num_steps < _FEW_STEPS else weight

    def zoomed(self, by: int) -> None:
        """Closer or further."""
        self.zoom = min(_ZOOMS, max(0, self.zoom + by))

    def moved(self, by: float) -> None:
        """Move the cursor by a share of the window; at its edge the window moves."""
        place = (1.0 if self.cursor is None else self.cursor) + by
        if not 0.0 <= place <= 1.0 and self.zoom:
            width = 0.5**self.zoom
            self.middle = min(1.0, max(0.0, self.middle + by * width / (1.0 - width)))
        self.cursor = min(1.0, max(0.0, place))

    def reset(self) -> None:
        """All of it, without a cursor."""
        self.zoom, self.middle, self.cursor = 0, 1.0, None


def picture_of(run: RunState, view: View, glyphs: Glyphs) -> Picture:
    """The picture of a run in a view."""
    x, y = _x(run.steps, view.axis), _y(run.steps, view.quantity)
    weight = view.weight(len(x))
    curves = [Curve(x, y, "raw"), Curve(x, smoothed(y, weight), "curve")]
    if not weight:
        curves = [Curve(x, y, "curve")]
    marks = _marks(run, view, x, glyphs) if view.quantity == "loss" else []
    window = _window(x, view)
    cursor = None
    if window is not None and view.cursor is not None:
        cursor = window[0] + view.cursor * (window[1] - window[0])
    text = _X_TEXTS[view.axis]
    return Picture(curves, marks, view.is_log, text, x_range=window, cursor=cursor)


def legend(run: RunState, view: View, glyphs: Glyphs) -> str:
    """Below the plot: how it is drawn."""
    pieces = [f"over {view.axis}" if view.axis != "steps" else ""]
    pieces.append("" if view.smoothing == "off" else f"smoothing {view.smoothing}")
    pieces.append("logarithmic" if view.is_log else "")
    if run.evals and view.quantity == "loss":
        pieces.append(f"{glyphs.best} held out")
    return f" {glyphs.dot} ".join(piece for piece in pieces if piece)


def at_cursor(run: RunState, view: View) -> str:
    """The numbers at the cursor; empty without one."""
    x = _x(run.steps, view.axis)
    window = _window(x, view)
    if view.cursor is None or window is None or not len(x):
        return ""
    place = window[0] + view.cursor * (window[1] - window[0])
    index = min(len(x) - 1, int(np.searchsorted(x, place)))
    if index and abs(x[index - 1] - place) < abs(x[index] - place):
        index -= 1
    y = _y(run.steps, view.quantity)
    weight = view.weight(len(x))
    told = f"step {count(run.steps['step'][index])}: {_told(view.quantity, float(y[index]))}"
    if weight:
        told += f", smoothed {_told(view.quantity, float(smoothed(y[: index + 1], weight)[-1]))}"
    return told


def _told(quantity: str, value: float) -> str:
    if not math.isfinite(value):
        return "no number"
    if quantity == "learning rate":
        return learning_rate(value)
    return count(value) if quantity == "tokens/s" else significant(value)


def _x(steps: StepTable, axis: str) -> Column:
    return steps[{"steps": "step", "time": "trained_s", "tokens": "trained_tokens"}[axis]]


def _y(steps: StepTable, quantity: str) -> Column:
    if quantity == "tokens/s":
        return np.asarray(steps["num_tokens"] / np.maximum(steps["duration_s"], 1e-9))
    names = {
        "loss": "loss",
        "gradient norm": "grad_norm",
        "learning rate": "learning_rate",
        "seconds a step": "duration_s",
    }
    return steps[names[quantity]]


def _window(x: Column, view: View) -> tuple[float, float] | None:
    if not len(x):
        return None
    first, last = float(x[0]), float(x[-1])
    width = (last - first) * 0.5**view.zoom
    left = first + view.middle * (last - first - width)
    return left, left + width


def _marks(run: RunState, view: View, x: Column, glyphs: Glyphs) -> list[Mark]:
    """Evaluations at their steps, the best one in its own colour."""
    steps = run.steps["step"]
    shown = [found for found in run.evals if math.isfinite(found.eval_loss)]
    if not shown or not len(steps):
        return []
    best = min(shown, key=lambda found: found.eval_loss)
    marks = []
    for found in shown:
        index = min(len(steps) - 1, int(np.searchsorted(steps, found.step)))
        look = "best" if found is best else "mark"
        marks.append(Mark(float(x[index]), found.eval_loss, glyphs.best, look))
    return marks


def _tokens(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:g} M"
    return f"{number / 1e3:g} k" if number >= 1e3 else f"{number:g}"


_X_TEXTS: dict[str, Callable[[float], str]] = {
    "steps": count,
    "time": lambda seconds: duration(seconds) if seconds else "0",
    "tokens": _tokens,
}
