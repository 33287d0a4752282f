"""The states of the screen `home` that have pictures."""

from tests.tui.listed_runs import EACH_STATE, StandingRuns
from tests.tui.pilot import app_of
from tests.tui.scene import Scene

SCENES = [
    Scene("home", "empty"),
    Scene("home", "ok", lambda: app_of(runs=StandingRuns(*EACH_STATE))),
    Scene("home", "error", lambda: app_of(runs=StandingRuns(*EACH_STATE[1:3]))),
]
