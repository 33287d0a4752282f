"""The states of the screen `data` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("data", "empty")]
