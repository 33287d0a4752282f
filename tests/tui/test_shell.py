"""The frame that all screens share."""

import pytest

from poros_tui import keys
from poros_tui.app import PorosApp
from poros_tui.screens.base import MODES, PorosScreen
from tests.tui.pilot import at, piloted


@piloted(size=(80, 24))
async def test_every_mode_has_its_number_and_its_title_in_the_bar(app, pilot):
    for number, (name, title) in enumerate(MODES.items(), 1):
        await pilot.press(str(number))
        await at(app, pilot, name)
        assert isinstance(app.screen, PorosScreen)
        assert app.screen.mode_name == name
        assert app.screen.title == title


def test_bindings_have_ids_that_are_unique_and_say_what_they_do():
    actions = list(keys.all_actions(list(PorosApp.BINDINGS)))
    declared = sum(len(vars(keys.screen_class(name)).get("BINDINGS", ())) for name in MODES)
    assert len(actions) == len(PorosApp.BINDINGS) + declared
    assert len({action.id for action in actions}) == len(actions)
    assert [action.id for action in actions if not action.does] == []


def test_no_key_of_a_screen_is_another_binding_s():
    for name in MODES:
        own = list(keys.screen_actions(name))
        pressed = [
            key for a in [*own, *keys.app_actions(PorosApp.BINDINGS)] for key in a.keys.split(",")
        ]
        assert sorted(pressed) == sorted(set(pressed)), name


@pytest.mark.parametrize("name", MODES)
def test_no_key_is_one_that_terminals_keep_for_themselves(name):
    forbidden = {"ctrl+b", "ctrl+enter", "shift+enter", "ctrl+h", "ctrl+i", "ctrl+m", "ctrl+a"}
    for action in [*keys.screen_actions(name), *keys.app_actions(PorosApp.BINDINGS)]:
        assert not forbidden & set(action.keys.split(",")), action
