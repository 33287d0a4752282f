import pytest
from rich.style import Style

from poros_tui.glyphs import FANCY, PLAIN
from poros_tui.widgets.block_map import (
    _NAMES,
    Blocks,
    lane,
    lines_of,
    passed_between,
    planned,
)

STYLES = {name: Style() for name in (*_NAMES, "ground")}


def shown(blocks, width=40, glyphs=FANCY):
    rows = []
    for line in lines_of(len(blocks.states), width):
        for row in (0, 1):
            strip = lane(blocks, line, row, width, STYLES, glyphs)
            assert strip.cell_length == width
            rows.append(strip.text.rstrip())
    return rows


def test_what_stays_is_above_and_what_waits_is_below():
    assert shown(planned(6, [0, 3]), 12) == ["card  ■  ■", "RAM    ░░ ░░"]


def test_each_state_has_its_sign_in_its_lane():
    blocks = Blocks("r.acd.", frozenset({5}))
    assert shown(blocks, 12) == ["card  ■ ▒◉▓·", "RAM    ░▒  ░"]
    assert shown(blocks, 12, PLAIN) == ["card  # -@=-", "RAM    .-  ."]


@pytest.mark.parametrize("num_blocks", [1, 28, 75, 76, 80, 126, 400])
@pytest.mark.parametrize("width", [20, 76, 136])
def test_every_block_has_a_place_whatever_the_width(num_blocks, width):
    lines = lines_of(num_blocks, width)
    assert [index for line in lines for index in line] == list(range(num_blocks))
    rows = shown(Blocks("." * num_blocks), width)
    assert len(rows) == 2 * len(lines)
    assert sum(row.count("░") for row in rows) >= num_blocks


def test_without_a_card_the_upper_lane_is_slots():
    assert shown(Blocks("c.", on_cpu=True), 12)[0].startswith("slots ")


def test_a_narrow_model_gets_wider_signs():
    assert shown(Blocks("c.."), 40)[0] == "card  ◉◉◉◉"
    assert shown(Blocks("c..", direction="backward"), 40)[0] == "card  ◀◉◉◉"
    assert shown(Blocks("c..", direction="forward"), 40)[0] == "card  ◉◉◉▶"
    assert shown(Blocks("c" + "." * 34), 40)[0] == "card  ◉"


@pytest.mark.parametrize(
    ("before", "now", "direction", "passed"),
    [
        (2, 5, "forward", {3, 4}),
        (5, 2, "backward", {3, 4}),
        (5, 1, "forward", {0}),
        (1, 5, "backward", {6, 7}),
        (None, 4, "forward", set()),
        (4, 4, "forward", set()),
    ],
)
def test_blocks_that_computed_between_two_samples_are_known(before, now, direction, passed):
    assert passed_between(before, now, direction, 8) == passed
