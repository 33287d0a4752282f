"""The states of the screen `runs` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("runs", "empty")]
