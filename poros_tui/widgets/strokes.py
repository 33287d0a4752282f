"""Small pictures within a line: bars of several parts, progress, curves a row high."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from textual.content import Content

from poros_tui.glyphs import Glyphs

_STEPS = "▁▂▃▄▅▆▇█"
_PLAIN_STEPS = "_.-=+*#"


def progress(share: float, width: int, glyphs: Glyphs, style: str = "$accent") -> Content:
    """A bar that is so far filled, 0 to 1."""
    share = min(1.0, max(0.0, share if math.isfinite(share) else 0.0))
    halves = round(share * 2 * width)
    full, half = divmod(halves, 2)
    done = glyphs.full * full + glyphs.half * half
    return Content.styled(done, style) + Content.styled(
        glyphs.empty * (width - len(done)), "$foreground 18%"
    )


def stacked(parts: Sequence[tuple[float, str]], width: int, glyphs: Glyphs) -> Content:
    """A bar whose parts each have a share of the whole and a style; what is left is empty.

    A part that is there at all gets at least one column.
    """
    content, left, owed = Content(""), width, 0.0
    for share, style in parts:
        owed += max(0.0, share) * width
        columns = min(left, max(round(owed), 1 if share > 0 else 0))
        owed -= columns
        left -= columns
        content += Content.styled(glyphs.full * columns, style)
    return content + Content.styled(glyphs.empty * left, "$foreground 18%")


def sparkline(values: NDArray[np.float64], width: int, glyphs: Glyphs) -> str:
    """The course of numbers in one row, each column the mean of its part; no number is a space."""
    if width <= 0 or not len(values):
        return ""
    values = np.where(np.isfinite(values), values, np.nan)
    bins = np.array_split(values, min(width, len(values)))
    means = np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in bins])
    if np.isnan(means).all():
        return " " * len(means)
    low, high = float(np.nanmin(means)), float(np.nanmax(means))
    steps = _PLAIN_STEPS if glyphs.is_plain else _STEPS
    # A curve that hardly moves is drawn as one, not as noise blown up.
    spread = max(high - low, 0.02 * abs(high)) or 1.0
    shares = np.nan_to_num((means - low) / spread)
    rows = np.clip((shares * len(steps)).astype(int), 0, len(steps) - 1)
    return "".join(
        " " if math.isnan(mean) else steps[row]
        for mean, row in zip(means.tolist(), rows.tolist(), strict=True)
    )


def aligned(left: Content, right: Content, width: int) -> Content:
    """Two texts at the ends of a line; the right one goes where there is no room for both."""
    gap = width - left.cell_length - right.cell_length
    if gap < 1:
        return left.truncate(max(0, width), ellipsis=True)
    return left + Content(" " * gap) + right
