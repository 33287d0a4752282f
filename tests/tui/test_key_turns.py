"""Keys that are typed ahead reach what has the keyboard once the one before is done."""

import pytest
from textual import events
from textual.widgets import Input

from poros_tui.widgets.key_turns import KeyTurns
from tests.tui.pilot import piloted
from tests.tui.result_fixtures import END, Scripted, result_app, said, shown, until


def typed(app, *keys):
    """All of them before any is answered, as on a slow machine or over a slow line."""
    for key in keys:
        app.post_message(events.Key(key, key if len(key) == 1 else None))


@pytest.mark.parametrize("size", [(80, 24), (140, 45)], ids=["80x24", "140x45"])
@pytest.mark.parametrize("way", [["c"], ["enter"]], ids=["c", "enter"])
def test_a_question_that_is_typed_ahead_is_asked(size, way):
    if way == ["enter"] and size == (80, 24):
        way = ["b", "enter"]  # after the samples comes the talk

    @piloted(mode="result", size=size, make=result_app)
    async def test(app, pilot):
        screen = await shown(app, pilot)
        talker = Scripted([*said("Aye."), END])
        screen._talk = lambda adapter: talker
        screen.query_one("#chat")._start = screen._talk
        # u, h, o, e, y and q are commands while nothing is typed in.
        typed(app, *way, *"who", "space", *"y", "e", "q", "enter")
        await until(app, pilot, lambda: bool(talker.sent))
        assert talker.sent == [{"say": "whoyeq", "compare": False}]
        assert app.focused is screen.query_one("#question")
        assert screen.reporting.told is None

    test()


@piloted(mode="model")
async def test_a_name_that_is_typed_ahead_stands_in_the_field(app, pilot):
    typed(app, "slash", *"qwen-cox")
    field = app.screen.query_one(Input)
    await until(app, pilot, lambda: field.value == "qwen-cox")
    assert not app._exit


@piloted()
async def test_numbers_that_are_typed_ahead_lead_to_the_last_screen(app, pilot):
    typed(app, "8", "3", "slash", *"abc")
    await until(app, pilot, lambda: app.current_mode == "model")
    await until(app, pilot, lambda: app.screen.query_one(Input).value == "abc")


@piloted()
async def test_a_key_whose_widget_went_away_holds_up_no_other_for_long(app, pilot):
    given = []

    async def hand_on(key):
        given.append(key.key)

    turns = KeyTurns(app, hand_on)
    await turns.take(events.Key("a", "a"))
    await turns.take(events.Key("b", "b"))
    assert given == ["a"]
    await turns.tick()
    assert given == ["a"]
    turns._since_s -= 60
    await turns.tick()
    assert given == ["a", "b"]
