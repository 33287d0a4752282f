"""The states of the screen `home` that have pictures."""

from tests.tui.listed_runs import EACH_STATE, StandingRuns
from tests.tui.pilot import app_of
from tests.tui.scene import Scene

SCENES = [
    Scene("home", "empty"),
    Scene("home", "ok", lambda: app_of(runs=StandingRuns(*EACH_STATE))),
    Scene("home", "error", lambda: app_of(runs=StandingRuns(*EACH_STATE[1:3]))),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["ok"].without_colours(), by_state["ok"].in_light()]
