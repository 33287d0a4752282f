"""The states of the screen `runs` that have pictures."""

from typing import Any

from textual.pilot import Pilot

from poros_tui.app import PorosApp
from tests.tui.listed_runs import DAY, EACH_STATE, StandingRuns, listed
from tests.tui.pilot import app_of
from tests.tui.scene import Scene

ANOTHER = listed("harbour-voice-r32b", "finished", 1200, 1200, ago_s=1 * DAY)


async def _on_the_failed_one(app: PorosApp, pilot: Pilot[Any]) -> None:
    await pilot.press("down", "down")


async def _delete(app: PorosApp, pilot: Pilot[Any]) -> None:
    await pilot.press("down", "x")


async def _compare(app: PorosApp, pilot: Pilot[Any]) -> None:
    await pilot.press("space", "down", "c")


SCENES = [
    Scene("runs", "empty"),
    Scene("runs", "ok", lambda: app_of(runs=StandingRuns(*EACH_STATE))),
    Scene("runs", "error", lambda: app_of(runs=StandingRuns(*EACH_STATE)), _on_the_failed_one),
    Scene("runs", "delete", lambda: app_of(runs=StandingRuns(*EACH_STATE)), _delete),
    Scene("runs", "compare", lambda: app_of(runs=StandingRuns(EACH_STATE[0], ANOTHER)), _compare),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["ok"].without_colours(), by_state["ok"].in_light()]
