"""How many things have which size: columns of eighths, what is cut in another colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

from textual.content import Content
from textual.widget import Widget

from poros_tui import glyphs

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PLAIN = " .:-=+*##"
_MOST_COLUMNS = 100


class Histogram(Widget):
    """Columns over an axis of sizes."""

    DEFAULT_CSS = "Histogram { height: 7; width: 1fr; }"

    def __init__(self, *, id: str | None = None) -> None:
        """Without sizes."""
        super().__init__(id=id)
        self._counts: dict[int, int] = {}
        self._limit = 0
        self._num_cut = 0

    def show(self, sizes: Sequence[int], *, limit: int = 0, num_cut: int = 0) -> None:
        """Other sizes.

        Args:
            sizes: In any order; none below 0.
            limit: The most that is allowed: sizes of it, if some were cut, are drawn as cut.
            num_cut: How many were.
        """
        self._counts = dict(sorted(Counter(sizes).items()))
        self._limit, self._num_cut = limit, num_cut
        self.refresh()

    def render(self) -> Content:
        """Columns, then the axis."""
        if not self._counts:
            return Content("")
        columns = max(8, min(self.size.width, _MOST_COLUMNS))
        rows = max(1, self.size.height - 1)
        low, high = min(self._counts), max(self._counts)
        counts = binned(self._counts, columns)
        levels = heights(counts, rows)
        is_cut = [False] * len(levels)
        if self._num_cut and high >= self._limit > 0:
            wide = -(-columns // min(columns, high - low + 1))
            is_cut[-wide:] = [True] * min(wide, len(is_cut))
        lines = [self._row(levels, is_cut, row) for row in range(rows - 1, -1, -1)]
        return Content("\n").join([*lines, self._axis(low, high, len(levels))])

    def _row(self, levels: Sequence[int], is_cut: Sequence[bool], row: int) -> Content:
        signs = _PLAIN if glyphs.chosen().is_plain else _EIGHTHS
        cells = [signs[min(8, max(0, level - 8 * row))] for level in levels]
        text = "".join(cells)
        first_cut = is_cut.index(True) if True in is_cut else len(text)
        return Content.styled(text[:first_cut], "$accent") + Content.styled(
            text[first_cut:], "$warning"
        )

    def _axis(self, low: int, high: int, width: int) -> Content:
        left, right = f"{low:,}", f"{high:,} tokens"
        middle = f"half up to {_median(self._counts):,}"
        room = self.size.width
        width = min(max(width, len(left) + len(right) + 2), room)
        gap = width - len(left) - len(right)
        if gap > len(middle) + 2:
            before = (gap - len(middle)) // 2
            between = " " * before + middle + " " * (gap - len(middle) - before)
        else:
            between = " " * max(1, gap)
        return Content.styled(f"{left}{between}{right}", "$secondary")


def binned(counts: Mapping[int, int], columns: int) -> list[int]:
    """Counts of equal stretches from the smallest to the largest; few values get wide columns.

    Args:
        counts: By size.
        columns: How many; each stretch has one or more.
    """
    low = min(counts)
    span = max(counts) - low + 1
    num_bins = min(columns, span)
    bins = [0] * num_bins
    for size, count in counts.items():
        bins[(size - low) * num_bins // span] += count
    return [bins[k * num_bins // columns] for k in range(columns)]


def _median(counts: Mapping[int, int]) -> int:
    half = sum(counts.values()) / 2
    passed = zip(counts, accumulate(counts.values()), strict=True)
    return next(size for size, so_far in passed if so_far >= half)


def heights(counts: Sequence[int], rows: int) -> list[int]:
    """In eighths of a row; what is there at all is seen."""
    most = max(counts)
    return [-(-count * 8 * rows // most) if count else 0 for count in counts]
