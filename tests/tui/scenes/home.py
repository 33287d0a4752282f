"""The states of the screen `home` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("home", "empty")]
