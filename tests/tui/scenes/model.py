"""The states of the screen `model` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("model", "empty")]
