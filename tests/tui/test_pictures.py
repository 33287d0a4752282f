"""The pictures of docs/screens are what the screens look like."""

import pytest
import textual

from poros_tui.screens.base import MODES
from tests.tui import pictures

HINT = "look at it, then: python tests/tui/pictures.py --write"
ours = pytest.mark.skipif(
    f"textual {textual.__version__}" != pictures.MADE_WITH, reason="drawn by another textual"
)


def test_every_picture_is_of_a_scene_and_every_scene_has_its_pictures():
    named = [
        f"{s.name}-{width}x{height}.svg" for s in pictures.scenes() for width, height in s.sizes
    ]
    assert sorted(named) == sorted(path.name for path in pictures.FOLDER.glob("*.svg")), HINT
    assert {scene.screen for scene in pictures.scenes()} == set(MODES)


def compared(scenes):
    """The names of pictures that are not what is drawn now."""
    drawn = pictures.pictures(scenes)
    assert drawn
    return [n for n, svg in drawn.items() if (pictures.FOLDER / n).read_text("utf-8") != svg]


@ours
@pytest.mark.parametrize("mode", MODES)
def test_a_picture_of_each_screen_is_current(mode):
    scenes = [scene for scene in pictures.scenes() if scene.screen == mode]
    first = next((scene for scene in scenes if scene.state == "ok"), scenes[0])
    assert compared([first.at_size((80, 24))]) == [], HINT


@ours
@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_all_pictures_are_current(mode):
    assert compared([scene for scene in pictures.scenes() if scene.screen == mode]) == [], HINT
