"""The states of the screen `train` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("train", "empty")]
