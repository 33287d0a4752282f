import itertools
import time

import numpy as np
import pytest
from rich.style import Style
from textual.geometry import Size

from poros_tui.glyphs import FANCY, PLAIN
from poros_tui.widgets import plot_dots
from poros_tui.widgets.plot import _LOOKS, Curve, Mark, Picture, draw
from poros_tui.widgets.plot_dots import Frame

STYLES = {name: Style(meta={"look": name}) for name in (*_LOOKS, "ground")}


def drawn(picture, width=60, height=12, glyphs=FANCY):
    strips = draw(picture, Size(width, height), STYLES, glyphs)
    assert [strip.cell_length for strip in strips] == [width] * height
    return ["".join(segment.text for segment in strip) for strip in strips]


def cells_of(picture, look, width=60, height=12):
    """Columns and rows that are drawn in a look."""
    found = []
    for row, strip in enumerate(draw(picture, Size(width, height), STYLES, FANCY)):
        column = 0
        for segment in strip:
            if segment.style and segment.style.meta["look"] == look:
                found += [(row, column + i) for i, sign in enumerate(segment.text) if sign != " "]
            column += len(segment.text)
    return found


def line(num_points, y=None):
    x = np.arange(num_points, dtype=float)
    return Curve(x, np.sin(x) if y is None else np.asarray(y, dtype=float))


def test_one_spike_in_a_hundred_thousand_points_is_drawn():
    x = np.arange(100_000, dtype=float)
    y = np.zeros(100_000)
    y[54_321] = 1.0
    frame = Frame(50, 10, 0.0, 99_999.0, 0.0, 1.0)
    _, highest = plot_dots.extremes(frame, x, y)
    assert np.flatnonzero(highest == 1.0).tolist() == [round(54_321 / 99_999 * 99)]


def test_no_number_is_a_gap_and_the_rest_is_joined():
    y = np.ones(40)
    y[10:20] = np.nan
    columns = {column for _, column in cells_of(Picture([line(40, y)]), "curve")}
    gutter, width = 6, 54
    gap = range(gutter + round(10 / 39 * width), gutter + round(18 / 39 * width))
    assert not columns & set(gap)
    assert {gutter, gutter + 5, 59} <= columns


def test_a_line_between_few_points_has_no_holes():
    columns = {column for _, column in cells_of(Picture([line(3, [0, 5, 1])]), "curve")}
    assert columns == set(range(6, 60))


def test_a_steep_line_is_joined_from_dot_to_dot():
    frame = Frame(2, 3, 0.0, 3.0, 0.0, 1.0)
    low = np.array([0.0, 1.0, np.nan, 0.5])
    dots = plot_dots.line_dots(frame, low, low)
    assert dots[:, 1].sum() == 11
    assert dots[:, 2].sum() == 0
    assert dots[:, 3].sum() == 1


def test_on_a_logarithmic_axis_decades_are_alike_and_zero_is_a_gap():
    curve = line(5, [1000, 100, 0, 10, 1])
    text = "\n".join(drawn(Picture([curve], is_log=True), height=16))
    rows = [index for index, row in enumerate(text.splitlines()) if "┤" in row]
    assert "1,000┤" in text
    assert "10┤" in text
    assert len({b - a for a, b in itertools.pairwise(rows)}) <= 3
    columns = {column for _, column in cells_of(Picture([curve], is_log=True), "curve")}
    assert len(columns) < 40


def test_without_a_positive_value_the_logarithmic_axis_is_an_ordinary_one():
    assert any("┤" in row for row in drawn(Picture([line(9, [-1.0] * 8 + [0.0])], is_log=True)))


def test_one_rare_spike_does_not_press_the_curve_flat():
    y = 2 + np.sin(np.arange(400) / 20)
    spiked = y.copy()
    spiked[200] = 500.0
    rows = {row for row, _ in cells_of(Picture([line(400, spiked)]), "curve")}
    assert len(rows) >= 9
    assert 0 in rows


def test_a_mark_lies_on_its_point_and_above_the_curve():
    picture = Picture([line(11, range(11))], [Mark(10.0, 10.0, "◆")])
    assert cells_of(picture, "mark") == [(0, 59)]


def test_marks_outside_the_window_are_left_out():
    picture = Picture([line(100)], [Mark(5.0, 0.0, "◆")], x_range=(50.0, 99.0))
    assert cells_of(picture, "mark") == []


@pytest.mark.parametrize("y", [[], [3.0], [2.0, 2.0], [np.nan, np.nan], [np.inf, 1.0, -np.inf]])
def test_hardly_any_points_are_no_trouble(y):
    drawn(Picture([line(len(y), y)]))


@pytest.mark.parametrize("size", [(0, 0), (1, 1), (11, 9), (12, 3), (200, 3), (13, 60)])
def test_any_size_is_filled_exactly(size):
    drawn(Picture([line(300)], [Mark(4.0, 0.5, "◆")], cursor=20.0), *size)


def test_plain_terminals_get_ascii():
    text = "\n".join(drawn(Picture([line(50)], cursor=20.0), glyphs=PLAIN))
    assert text.isascii()
    assert set("|'.") <= set(text)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 10.0, [0, 2, 4, 6, 8, 10]),
        (1.1, 1.4, [1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4]),
        (0.0, 412.0, [0, 100, 200, 300, 400]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert plot_dots.nice_ticks(low, high, 6) == pytest.approx(ticks)


def test_an_axis_of_steps_has_no_ticks_between_them():
    assert plot_dots.nice_ticks(1.0, 2.0, 6, 1.0) == [1.0, 2.0]


@pytest.mark.alone
def test_a_hundred_thousand_points_are_drawn_in_five_milliseconds_of_processor():
    x = np.arange(100_000, dtype=float)
    y = 2 + np.exp(-x / 9000) + np.random.default_rng(1).normal(size=len(x)) * 0.2
    picture = Picture([Curve(x, y, "raw"), Curve(x, y, "curve")])
    took = []
    for _ in range(15):
        began = time.process_time()
        draw(picture, Size(120, 40), STYLES, FANCY)
        took.append(time.process_time() - began)
    # The bare minimum is what the work costs; a busy machine only adds to it.
    assert min(took) < 0.005


@pytest.mark.parametrize(
    ("values", "is_log", "texts"),
    [
        ([1.0, 1.5, 2.0], False, ["1.0", "1.5", "2.0"]),
        ([0.0, 1000.0], False, ["0", "1,000"]),
        ([0.02, 10.0, 1000.0], True, ["0.02", "10", "1,000"]),
        ([3.0], False, ["3"]),
        ([1.0, 1.0], False, ["1", "1"]),
        ([0.0, 2e-7], False, ["0", "2e-07"]),
        ([2.03011, 2.030111, 2.030112], False, ["2.03011", "2.030111", "2.030112"]),
        ([2e7, 2.1e7], False, ["2e+07", "2.1e+07"]),
    ],
)
def test_ticks_have_the_digits_that_tell_them_apart(values, is_log, texts):
    assert plot_dots.tick_texts(values, is_log=is_log) == texts
