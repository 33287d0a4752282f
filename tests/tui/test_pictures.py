"""The pictures of docs/screens are what the screens look like."""

import re
from collections import Counter
from itertools import product

import pytest
import textual

from poros_tui.screens.base import MODES
from tests.tui import pictures
from tests.tui.scene import LARGE, SIZES, SMALL

HINT = "look at it, then: python tests/tui/pictures.py --write"
ours = pytest.mark.skipif(
    f"textual {textual.__version__}" != pictures.MADE_WITH, reason="drawn by another textual"
)


def test_every_picture_is_of_a_scene_and_every_scene_has_its_pictures():
    named = [
        f"{s.name}-{width}x{height}.svg" for s in pictures.scenes() for width, height in s.sizes
    ]
    assert sorted(named) == sorted(path.name for path in pictures.FOLDER.glob("*.svg")), HINT


@pytest.mark.parametrize("mode", MODES)
def test_each_screen_is_shown_empty_well_and_wrong_in_both_sizes_without_colours_and_in_light(mode):
    has = {(s.state, size) for s in pictures.scenes() if s.screen == mode for size in s.sizes}
    wanted = {*product(("empty", "ok", "error"), SIZES), ("no-color", SMALL), ("light", LARGE)}
    assert wanted - has == set()
    # A state that looks like another one is none; without colours and in light it may.
    texts = Counter(
        words_of(f"{mode}-{state}-{width}x{height}.svg")
        for state, (width, height) in has
        if state not in ("no-color", "light")
    )
    assert max(texts.values()) == 1


@pytest.mark.parametrize("mode", MODES)
def test_without_colours_there_is_none(mode):
    for path in pictures.FOLDER.glob(f"{mode}-no-color-*.svg"):
        # The window's three buttons, and what no colour was set for, are none of ours.
        drawn = re.sub(r"<circle .*?/>|#c5c8c6", "", path.read_text("utf-8"))
        shades = set(re.findall(r"#([0-9a-f]{6})\b", drawn))
        assert len(shades) > 3
        assert {shade for shade in shades if len({shade[:2], shade[2:4], shade[4:]}) > 1} == set()


def words_of(name):
    """What a picture says, with where it says it."""
    svg = (pictures.FOLDER / name).read_text("utf-8")
    return tuple(re.findall(r'<text class="t-r\d+" (.*?)</text>', svg))


def compared(scenes):
    """The names of pictures that are not what is drawn now."""
    drawn = pictures.pictures(scenes)
    assert drawn
    return [n for n, svg in drawn.items() if (pictures.FOLDER / n).read_text("utf-8") != svg]


@ours
@pytest.mark.parametrize("mode", MODES)
def test_all_pictures_are_current(mode):
    assert compared([scene for scene in pictures.scenes() if scene.screen == mode]) == [], HINT
