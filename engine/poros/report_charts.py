"""Line charts as SVG text, for a page that must need nothing else.

A chart has at most `MAX_POINTS` points of a line, however long the run was: of each stretch of
steps the lowest and the highest stay, so that no spike is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

MAX_POINTS = 600

WIDTH, HEIGHT = 640, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 26, 12, 26

Points = Sequence[tuple[int, float | None]]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        name: In the legend.
        points: Step and value, by step; None is a gap.
        look: Its CSS class: ``a``, ``b``, ``c`` (colours), ``raw`` (pale).
        dots: Marks instead of a line.
    """

    name: str
    points: Points
    look: str = "a"
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A titled chart over steps.

    Attributes:
        title: Above it.
        lines: Of one unit.
        told: A value for people.
        guide: A level to draw across, with its name.
        from_zero: The axis begins at 0.
        note: A sentence below.
    """

    title: str
    lines: Sequence[Line]
    told: Callable[[float], str]
    guide: tuple[str, float] | None = None
    from_zero: bool = False
    note: str = ""

    @property
    def drawn(self) -> list[Line]:
        """The lines that have a value."""
        return [line for line in self.lines if any(v is not None for _, v in line.points)]

    @property
    def values(self) -> list[float]:
        """Every value, and the guide."""
        found = [v for line in self.lines for _, v in line.points if v is not None]
        return [*found, *([self.guide[1]] if self.guide and found else [])]

    def svg(self) -> str:
        """The picture; empty without a value."""
        return _svg(self) if self.values else ""

    def readings(self) -> str:
        """JSON of the values that the pointer reads: names, looks, and rows by step."""
        rows: dict[int, dict[int, str]] = {}
        for index, line in enumerate(self.drawn):
            for step, value in thinned(line.points):
                if value is not None:
                    rows.setdefault(step, {})[index] = self.told(value)
        axis = _axis(self)
        return json.dumps(
            {
                "names": [line.name for line in self.drawn],
                "looks": [line.look for line in self.drawn],
                "left": _LEFT / WIDTH,
                "right": 1 - _RIGHT / WIDTH,
                "first": axis.first,
                "last": axis.last,
                "rows": sorted(rows.items()),
            },
            separators=(",", ":"),
        )


def smoothed(points: Points, *, width: int) -> list[tuple[int, float | None]]:
    """A running mean in which a value counts half as much after about ``width`` steps."""
    keep = 0.5 ** (1 / max(1, width))
    mean = weight = 0.0
    found: list[tuple[int, float | None]] = []
    for step, value in points:
        if value is None:
            continue
        mean = keep * mean + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        found.append((step, mean / weight))
    return found


def thinned(points: Points, limit: int = MAX_POINTS) -> list[tuple[int, float | None]]:
    """At most about ``limit`` points: of each stretch its ends in value, and gaps as gaps."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    found: list[tuple[int, float | None]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        there = [(value, step) for step, value in stretch if value is not None]
        if not there:
            found.append((stretch[0][0], None))
            continue
        (low, at_low), (high, at_high) = min(there), max(there)
        found += sorted({(at_low, low), (at_high, high)})
    return found


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from at most ``low`` to at least ``high``."""
    span = high - low
    if span <= 1e-9 * abs(high):  # flat, or nearly: the axis has the value's own size
        span = abs(high)
    if span < 1e-200:
        span = 1.0
    rough = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, max(last, first + 1) + 1)]


@dataclass(frozen=True)
class _Axis:
    first: int
    last: int
    levels: list[float]

    def x(self, step: float) -> float:
        part = (step - self.first) / max(1, self.last - self.first)
        return _LEFT + part * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self.levels[0], self.levels[-1]
        part = (value - low) / (high - low)
        return HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM)


def _axis(chart: Chart) -> _Axis:
    steps = [step for line in chart.lines for step, _ in line.points]
    values = chart.values
    low = 0.0 if chart.from_zero else min(values)
    return _Axis(min(steps), max(steps), ticks(low, max(values)))


def _svg(chart: Chart) -> str:
    axis = _axis(chart)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        *_grid(axis, chart.told),
    ]
    for line in chart.drawn:
        parts += _marks(line, axis) if line.dots else [_path(line, axis)]
    if chart.guide:
        name, level = chart.guide
        y = axis.y(level)
        parts.append(f'<line class="guide" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" {_at(y)}/>')
        parts.append(
            f'<text class="guide-name" x="{WIDTH - _RIGHT - 2}" y="{y - 4:.1f}">'
            f"{escape(name)}</text>"
        )
    parts.append(f'<line class="pointer" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" x1="0" x2="0"/>')
    return "".join([*parts, "</svg>"])


def _at(y: float) -> str:
    return f'y1="{y:.1f}" y2="{y:.1f}"'


def _grid(axis: _Axis, told: Callable[[float], str]) -> Iterable[str]:
    for level in axis.levels:
        y = axis.y(level)
        yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" {_at(y)}/>'
        yield f'<text class="level" x="{_LEFT - 8}" y="{y + 4:.1f}">{escape(told(level))}</text>'
    for step in _step_ticks(axis):
        x = axis.x(step)
        yield f'<text class="step" x="{x:.1f}" y="{HEIGHT - 8}">{step:,}</text>'


def _step_ticks(axis: _Axis) -> list[int]:
    if axis.last == axis.first:
        return [axis.first]
    levels = ticks(axis.first, axis.last, 7)
    return [int(s) for s in levels if s == int(s) and axis.first <= s <= axis.last]


def _path(line: Line, axis: _Axis) -> str:
    parts, pen_down = [], False
    points = thinned(line.points)
    for step, value in points:
        if value is not None:
            parts.append(f"{'L' if pen_down else 'M'}{axis.x(step):.1f} {axis.y(value):.1f}")
        pen_down = value is not None
    if sum(value is not None for _, value in points) == 1:
        return "".join(_marks(line, axis))
    return f'<path class="line {line.look}" d="{"".join(parts)}"/>'


def _marks(line: Line, axis: _Axis) -> list[str]:
    return [
        f'<circle class="dot {line.look}" cx="{axis.x(step):.1f}" cy="{axis.y(value):.1f}" r="4"/>'
        for step, value in thinned(line.points)
        if value is not None
    ]


def by_step(steps: Mapping[int, Mapping[str, float | None]], name: str) -> Points:
    """One number of every step that has been made, by step."""
    return [(step, steps[step].get(name)) for step in sorted(steps)]
