"""The states of the screen `config` that have pictures."""

from tests.tui.scene import Scene

SCENES = [Scene("config", "empty")]
