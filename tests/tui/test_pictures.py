"""The pictures of docs/screens are what the screens look like."""

import pytest
import textual

from poros_tui.screens.base import MODES
from tests.tui import pictures

HINT = "look at it, then: python tests/tui/pictures.py --write"


@pytest.mark.skipif(
    f"textual {textual.__version__}" != pictures.MADE_WITH, reason="drawn by another textual"
)
@pytest.mark.parametrize("mode", MODES)
def test_the_pictures_of_a_screen_are_current(mode):
    drawn = pictures.pictures([scene for scene in pictures.scenes() if scene.screen == mode])
    assert drawn
    kept = {path.name: path.read_text("utf-8") for path in pictures.FOLDER.glob(f"{mode}-*.svg")}
    assert sorted(kept) == sorted(drawn), HINT
    assert [name for name, svg in drawn.items() if kept[name] != svg] == [], HINT
