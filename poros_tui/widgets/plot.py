"""A plot for the terminal: curves of any number of points, marks, two axes; numpy and braille."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from poros_tui.glyphs import FANCY, Glyphs
from poros_tui.widgets import plot_dots
from poros_tui.widgets.plot_dots import Floats, Frame
from poros_tui.words import count

_MIN_WIDTH, _MIN_HEIGHT = 12, 3
_GUIDE_EVERY = 2
_GUTTER = 6
"""Columns for the y axis, so that the curve doesn't jump when its labels change."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points from left to right; ``look`` is ``raw``, ``curve`` or ``other``."""

    x: Floats
    y: Floats
    look: str = "curve"


@dataclass(frozen=True, slots=True)
class Mark:
    """One point with a sign of its own."""

    x: float
    y: float
    sign: str
    look: str = "mark"


@dataclass(frozen=True, slots=True)
class Picture:
    """What a plot shows.

    Attributes:
        curves: The later ones cover the earlier ones.
        marks: Above all curves.
        is_log: A logarithmic y axis; needs a positive value.
        x_text: A tick of the x axis in words.
        x_least: The least between two ticks.
        x_range: Left and right edge; None: all there is.
        cursor: An x with a line through it; None: none.
    """

    curves: Sequence[Curve] = ()
    marks: Sequence[Mark] = ()
    is_log: bool = False
    x_text: Callable[[float], str] = count
    x_least: float = 1.0
    x_range: tuple[float, float] | None = None
    cursor: float | None = None


class Plot(Widget):
    """Draws a `Picture` in its size; before the first one it is empty."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--raw",
        "plot--curve",
        "plot--other",
        "plot--mark",
        "plot--best",
        "plot--axis",
        "plot--guide",
        "plot--cursor",
    }
    DEFAULT_CSS = """
    Plot {
        height: 1fr;
        & > .plot--raw { color: $foreground 32%; }
        & > .plot--curve { color: $accent; }
        & > .plot--other { color: $warning; }
        & > .plot--mark { color: $foreground; text-style: bold; }
        & > .plot--best { color: $success; text-style: bold; }
        & > .plot--axis { color: $foreground 50%; }
        & > .plot--guide { color: $foreground 13%; }
        & > .plot--cursor { color: $foreground 50%; }
    }
    """

    def __init__(self, *, glyphs: Glyphs = FANCY, id: str | None = None) -> None:
        """Nothing to show yet."""
        super().__init__(id=id)
        self.glyphs = glyphs
        self.picture = Picture()
        self._strips: list[Strip] | None = None
        self._size_drawn = Size()

    def show(self, picture: Picture) -> None:
        """Draw this from now on."""
        self.picture = picture
        self._strips = None
        self.refresh()

    def notify_style_update(self) -> None:
        """Colours changed."""
        super().notify_style_update()
        self._strips = None

    def render_line(self, y: int) -> Strip:
        """One row of cells."""
        size = self.size
        if self._strips is None or self._size_drawn != size:
            styles = {name: self.get_component_rich_style(f"plot--{name}") for name in _LOOKS}
            styles["ground"] = self.rich_style
            self._strips = draw(self.picture, size, styles, self.glyphs)
            self._size_drawn = size
        return self._strips[y]


_LOOKS = ("raw", "curve", "other", "mark", "best", "axis", "guide", "cursor")
_LOOK_OF = {name: index for index, name in enumerate(_LOOKS)}
_NO_LOOK = -1


def draw(picture: Picture, size: Size, styles: dict[str, Style], glyphs: Glyphs) -> list[Strip]:
    """A picture as rows of cells; a size too small for axes gives blanks."""
    if size.width < _MIN_WIDTH or size.height < _MIN_HEIGHT:
        return [Strip.blank(size.width, styles["ground"]) for _ in range(size.height)]
    canvas = _Canvas(picture, size, glyphs)
    canvas.draw()
    return canvas.strips(styles)


class _Canvas:
    """Cells with a code point and a look each."""

    def __init__(self, picture: Picture, size: Size, glyphs: Glyphs) -> None:
        self.picture, self.size, self.glyphs = picture, size, glyphs
        self.codes = np.full((size.height, size.width), ord(" "))
        self.looks = np.full((size.height, size.width), _NO_LOOK, dtype=np.int8)

    def draw(self) -> None:
        shown = [curve for curve in self.picture.curves if len(curve.x)]
        if not shown:
            return
        height = self.size.height - 1
        gutter = _GUTTER
        frame, ranges = _framed(self.picture, shown, self.size.width - gutter, height)
        ticks = _y_ticks(frame)
        values = [10**tick if frame.is_log else tick for tick in ticks]
        labels = plot_dots.tick_texts(values, is_log=frame.is_log)
        if (widest := max([len(label) for label in labels], default=0)) >= gutter:
            gutter = widest + 1
            frame, ranges = _framed(self.picture, shown, self.size.width - gutter, height)
        self._write_y_axis(frame, ticks, labels, gutter)
        self._write_x_axis(frame, gutter)
        for curve, (lowest, highest) in zip(shown, ranges, strict=True):
            bits = plot_dots.cell_bits(plot_dots.line_dots(frame, lowest, highest))
            codes = plot_dots.plain(bits) if self.glyphs.is_plain else plot_dots.braille(bits)
            drawn = bits > 0
            self.codes[:height, gutter:][drawn] = codes[drawn]
            self.looks[:height, gutter:][drawn] = _LOOK_OF[curve.look]
        for mark in self.picture.marks:
            self._write_mark(frame, mark, gutter)

    def _write_y_axis(
        self, frame: Frame, ticks: list[float], labels: list[str], gutter: int
    ) -> None:
        guide = ord("." if self.glyphs.is_plain else "·")
        rows = [int(row) // 4 for row in frame.row(np.array(ticks))]
        for row, label in zip(rows, labels, strict=True):
            self._write(row, gutter - 1 - len(label), label, "axis")
            self._write(row, gutter - 1, "|" if self.glyphs.is_plain else "┤", "guide")
            self.codes[row, gutter + 1 :: _GUIDE_EVERY] = guide
            self.looks[row, gutter:] = _LOOK_OF["guide"]

    def _write_x_axis(self, frame: Frame, gutter: int) -> None:
        row, end = self.size.height - 1, 0
        most = max(1, frame.width // 10)
        for tick in plot_dots.nice_ticks(frame.left, frame.right, most, self.picture.x_least):
            label = self.picture.x_text(tick)
            column = gutter + frame.column(tick)
            first = min(max(column - len(label) // 2, 0), self.size.width - len(label))
            if first >= end and first >= 0:
                self._write(row, first, label, "axis")
                end = first + len(label) + 2
        if self.picture.cursor is not None:
            column = gutter + frame.column(self.picture.cursor)
            for line in range(row):
                self._write(line, column, "|" if self.glyphs.is_plain else "│", "cursor")

    def _write_mark(self, frame: Frame, mark: Mark, gutter: int) -> None:
        value = frame.value(np.array([mark.y]))
        if not (frame.left <= mark.x <= frame.right and np.isfinite(value[0])):
            return
        row = int(frame.row(value)[0]) // 4
        self._write(row, gutter + frame.column(mark.x), mark.sign, mark.look)

    def _write(self, row: int, column: int, text: str, look: str) -> None:
        codes = [ord(sign) for sign in text]
        self.codes[row, column : column + len(codes)] = codes
        self.looks[row, column : column + len(codes)] = _LOOK_OF[look]

    def strips(self, styles: dict[str, Style]) -> list[Strip]:
        by_look = [*(styles[name] for name in _LOOKS), styles["ground"]]
        width = self.size.width
        text = self.codes.astype("<u4").tobytes().decode("utf-32-le")
        # A segment ends where the look changes, and with each row.
        ends = np.ones(self.looks.shape, dtype=bool)
        ends[:, :-1] = self.looks[:, 1:] != self.looks[:, :-1]
        rows: list[list[Segment]] = [[] for _ in range(self.size.height)]
        looks, first = self.looks.ravel(), 0
        for end in (np.flatnonzero(ends.ravel()) + 1).tolist():
            rows[first // width].append(Segment(text[first:end], by_look[looks[first]]))
            first = end
        return [Strip(segments, width) for segments in rows]


def _framed(
    picture: Picture, curves: Sequence[Curve], width: int, height: int
) -> tuple[Frame, list[tuple[Floats, Floats]]]:
    """The frame that holds all curves, and each one's extremes in its columns."""
    left, right = picture.x_range or (
        min(float(curve.x[0]) for curve in curves),
        max(float(curve.x[-1]) for curve in curves),
    )
    right = right if right > left else left + 1.0
    is_log = picture.is_log and any((curve.y > 0).any() for curve in curves)
    frame = Frame(width, height, left, right, 0.0, 1.0, is_log)
    ranges = [plot_dots.extremes(frame, curve.x, curve.y) for curve in curves]
    low, high = _y_range(picture, frame, ranges)
    return Frame(width, height, left, right, low, high, is_log), ranges


def _y_range(
    picture: Picture, frame: Frame, ranges: Sequence[tuple[Floats, Floats]]
) -> tuple[float, float]:
    """All that is drawn, with a little air; rare spikes are cut at the edge.

    Otherwise one spike would press the whole curve flat.
    """
    lows = np.concatenate([lowest[np.isfinite(lowest)] for lowest, _ in ranges])
    highs = np.concatenate([highest[np.isfinite(highest)] for _, highest in ranges])
    marks = frame.value(np.array([mark.y for mark in picture.marks], dtype=np.float64))
    marks = marks[np.isfinite(marks)]
    if not len(lows):
        return 0.0, 1.0
    low = float(min([lows.min(), *marks]))
    high = float(max([highs.max(), *marks]))
    usual = float(np.quantile(highs, 0.985))
    if len(highs) > 40 and high - low > 3 * (usual - low) > 0:
        high = usual + 0.1 * (usual - low)
    if high <= low:
        air = abs(low) * 0.05 or 0.5
        return low - air, high + air
    return low - 0.02 * (high - low), high + 0.02 * (high - low)


def _y_ticks(frame: Frame) -> list[float]:
    most = max(2, round(frame.height / 2.5))
    if frame.is_log:
        ticks = plot_dots.log_ticks(frame.low, frame.high, most)
        if len(ticks) >= 2:
            return ticks
        values = plot_dots.nice_ticks(10**frame.low, 10**frame.high, most)
        return [math.log10(value) for value in values if value > 0]
    return plot_dots.nice_ticks(frame.low, frame.high, most)
