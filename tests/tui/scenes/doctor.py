"""The states of the screen `doctor` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("doctor", "empty")]
