"""Charts: few points, no lost spike, gaps, and axes for any numbers."""

import math
from xml.etree import ElementTree

import pytest

from poros.report_charts import MAX_POINTS, Chart, Line, smoothed, thinned, ticks


def chart(values, **settings) -> Chart:
    points = list(enumerate(values, 1))
    return Chart(title="a < b", lines=[Line(name="l", points=points)], told=str, **settings)


def test_thinning_keeps_spikes_and_stays_small():
    values = [1.0] * 100_000
    values[77_777], values[500] = 9.0, -9.0
    found = thinned(list(enumerate(values)))
    assert len(found) <= MAX_POINTS
    assert (77_777, 9.0) in found
    assert (500, -9.0) in found
    assert [step for step, _ in found] == sorted(step for step, _ in found)


def test_a_stretch_without_a_value_stays_a_gap():
    values = [1.0] * 1000 + [None] * 1000 + [1.0] * 1000
    assert None in [value for _, value in thinned(list(enumerate(values)))]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (1, 1), (-3, 5), (0, 1e-300), (1e99, 1e99), (-1e99, 1e99), (1, 1 + 1e-12), (0, 2e-4)],
)
def test_ticks_are_few_and_enclose(low, high):
    levels = ticks(low, high)
    assert 2 <= len(levels) <= 8
    assert levels == sorted(set(levels))
    assert levels[0] <= low + 1e-9 * abs(low)
    assert levels[-1] >= high - 1e-9 * abs(high)


@pytest.mark.parametrize("values", [[2.0], [1.0, None, 3.0], [0.0, 0.0], [-1e99, 1e99]])
def test_a_chart_is_well_formed_and_inside_its_frame(values):
    drawing = chart(values, guide=("limit", 1.0), from_zero=min(v or 0 for v in values) >= 0)
    root = ElementTree.fromstring(drawing.svg())
    assert root.get("aria-label") == "a < b"
    marks = [float(mark.get("cy")) for mark in root.iter("circle")]
    for path in root.iter("path"):
        numbers = path.get("d").replace("M", " ").replace("L", " ").split()
        marks += map(float, numbers[1::2])
    assert len(marks) == sum(v is not None for v in values)
    assert all(0 <= y <= 230 for y in marks)


def test_a_chart_without_a_value_is_not_drawn():
    assert chart([None, None]).svg() == ""
    assert chart([]).svg() == ""


def test_smoothing_begins_at_the_first_value_and_passes_over_gaps():
    found = smoothed([(1, 4.0), (2, None), (3, 2.0)], width=1)
    assert found[0] == (1, 4.0)
    assert [step for step, _ in found] == [1, 3]
    assert math.isclose(found[1][1], (0.25 * 4 + 0.5 * 2) / 0.75)
