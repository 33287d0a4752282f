"""The states of the screen `result` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("result", "empty")]
