"""The last line of each screen names the way on."""

import pytest
from textual.widgets._footer import FooterKey

from tests.tui.config_fixtures import wizard_app
from tests.tui.listed_runs import EACH_STATE, StandingRuns
from tests.tui.pilot import app_of, piloted
from tests.tui.result_fixtures import result_app, shown


def with_runs():
    return app_of(runs=StandingRuns(*EACH_STATE))


@pytest.mark.parametrize("name", ["home", "doctor", "model", "data", "config", "result", "runs"])
def test_the_last_line_says_what_enter_does_next(name):
    async def look(app, pilot):
        if name == "result":
            await shown(app, pilot)
            await app.tick()
            await pilot.pause()
        enter = [key.description for key in app.screen.query(FooterKey) if key.key == "enter"]
        assert len(enter) == 1
        assert enter != [""]

    make = {"config": wizard_app, "result": result_app}.get(name, with_runs)
    piloted(mode=name, make=make)(look)()
