"""Curves as braille dots, by numpy alone: a column of dots keeps the lowest and highest value.

Spikes therefore stay, and the time to draw hardly depends on the number of points. What is no
finite number is a gap. Nothing here knows Textual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Dots = NDArray[np.bool_]

_BRAILLE = 0x2800
# The bit of the dot in row and column of a cell.
_BITS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Frame:
    """A window onto the plane, ``width`` x ``height`` cells of 2 x 4 dots each.

    ``low`` and ``high`` are on the axis as it is drawn: of a logarithmic one, their logarithms.
    """

    width: int
    height: int
    left: float
    right: float
    low: float
    high: float
    is_log: bool = False

    def value(self, y: Floats) -> Floats:
        """Values as they lie on the axis; what has no place there is NaN."""
        if not self.is_log:
            return np.where(np.isfinite(y), y, np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where((y > 0) & np.isfinite(y), np.log10(y), np.nan)

    def row(self, value: Floats) -> Floats:
        """The row of dots, from the top; beyond the frame is its edge."""
        share = (value - self.low) / (self.high - self.low or 1.0)
        last = 4 * self.height - 1
        return np.clip(np.round((1.0 - share) * last), 0, last)

    def column(self, x: float) -> int:
        """The cell's column of an x within the frame."""
        share = (x - self.left) / (self.right - self.left or 1.0)
        return min(self.width - 1, max(0, round(share * (2 * self.width - 1)) // 2))


def extremes(frame: Frame, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Lowest and highest value on the axis for each column of dots; NaN where there is nothing.

    Columns between two points lie on the line between them.

    Args:
        frame: Its ``low`` and ``high`` don't matter.
        x: Ascending.
        y: As long as ``x``.
    """
    num_columns = 2 * frame.width
    lowest: Floats = np.full(num_columns, np.nan)
    highest: Floats = np.full(num_columns, np.nan)
    if not len(x):
        return lowest, highest
    step = (frame.right - frame.left) / max(1, num_columns - 1)
    middles: Floats = np.arange(num_columns, dtype=np.float64) * step + frame.left
    edges = np.append(middles - step / 2, middles[-1] + step / 2)
    firsts = np.searchsorted(x, edges)
    full = np.flatnonzero(firsts[1:] > firsts[:-1])
    if len(full):
        inner = frame.value(y[firsts[0] : firsts[-1]])
        starts = firsts[full] - firsts[0]
        lowest[full] = np.fmin.reduceat(inner, starts)
        highest[full] = np.fmax.reduceat(inner, starts)
    _fill_between(frame, x, y, middles, firsts, lowest, highest)
    return lowest, highest


def _fill_between(
    frame: Frame,
    x: Floats,
    y: Floats,
    middles: Floats,
    firsts: NDArray[np.intp],
    lowest: Floats,
    highest: Floats,
) -> None:
    """Columns without a point take the line between the points beside them."""
    empty = np.flatnonzero(firsts[1:] == firsts[:-1])
    after = firsts[empty]
    inside = (after > 0) & (after < len(x))
    empty, after = empty[inside], after[inside]
    if not len(empty):
        return
    left, right = frame.value(y[after - 1]), frame.value(y[after])
    share = (middles[empty] - x[after - 1]) / (x[after] - x[after - 1])
    lowest[empty] = highest[empty] = left + share * (right - left)


def line_dots(frame: Frame, lowest: Floats, highest: Floats) -> Dots:
    """A matrix of dots, ``4 * height`` x ``2 * width``: each column's stretch, joined up."""
    top, bottom = frame.row(highest), frame.row(lowest)
    top_before = np.concatenate(([np.nan], top[:-1]))
    bottom_before = np.concatenate(([np.nan], bottom[:-1]))
    # Comparisons with NaN are false: across a gap nothing is joined.
    top = np.where(top > bottom_before, bottom_before + 1, top)
    bottom = np.where(bottom < top_before, top_before - 1, bottom)
    rows = np.arange(4 * frame.height)[:, None]
    return np.asarray((rows >= top) & (rows <= bottom))


def cell_bits(dots: Dots) -> NDArray[np.int64]:
    """Each cell's eight dots as bits, ``height`` x ``width``."""
    height, width = dots.shape[0] // 4, dots.shape[1] // 2
    cells = dots.reshape(height, 4, width, 2) * _BITS[:, None, :]
    found = np.bitwise_or.reduce(np.bitwise_or.reduce(cells, axis=3), axis=1)
    return np.asarray(found, dtype=np.int64)


def braille(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Code points of cells; one without a dot is a space."""
    return np.where(bits > 0, bits + _BRAILLE, ord(" "))


def _plain_sign(bits: int) -> str:
    rows = [row for row in range(4) if bits & int(_BITS[row].sum())]
    if not rows:
        return " "
    if len(rows) > 2:
        return "|"
    return {0: "'", 1: "-", 2: "-", 3: "."}[rows[0]] if len(rows) == 1 else ":"


_PLAIN = np.array([ord(_plain_sign(bits)) for bits in range(256)])


def plain(bits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same in ASCII."""
    return np.asarray(_PLAIN[bits])


def nice_ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Round numbers between two: steps of 1, 2 or 5 times a power of ten.

    Args:
        low: Where the axis begins.
        high: Where it ends.
        most: Ticks at most.
        least: The shortest step: 1 for an axis of whole numbers.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or most < 1:
        return []
    rough = max((high - low) / most, least)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 5, 10, 20) if s * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    ticks = [index * step for index in range(first, first + most + 2)]
    return [tick for tick in ticks if tick <= high + 1e-9 * step]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Positions on a logarithmic axis, as logarithms: 1, 2 and 5 in each decade, or decades."""
    if high <= low:
        return []
    decades = range(math.floor(low) - 1, math.ceil(high) + 1)
    fine = [d + math.log10(s) for d in decades for s in (1, 2, 5)]
    ticks = [tick for tick in fine if low <= tick <= high]
    if len(ticks) > most:
        ticks = [float(d) for d in decades if low <= d <= high]
        ticks = ticks[:: -(-len(ticks) // most) or 1]
    return ticks


def tick_texts(values: list[float], *, is_log: bool) -> list[str]:
    """Ticks with as many digits after the point as tell them apart, all equally many.

    Args:
        values: On the plane, not on the axis.
        is_log: Each one with its own digits.
    """
    if is_log or len(values) < 2:
        return [f"{value:,.10g}" if 1e-4 <= abs(value) < 1e7 else f"{value:g}" for value in values]
    step = min(abs(b - a) for a, b in pairwise(values))
    if not step:  # nearer than floating point tells apart
        return [f"{value:g}" for value in values]
    if step >= 1e6 or step < 1e-5:
        largest = max(abs(value) for value in values)
        told_apart = math.floor(math.log10(largest)) - math.floor(math.log10(step) + 1e-9) + 1
        return [f"{value:.{min(max(told_apart, 1), 15)}g}" for value in values]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{value:,.{digits}f}" for value in values]
