"""From Home to a model folder with Enter, arrows and typed words alone, on a pseudo-terminal.

No network can be reached. A tiny model stands in for the demo's at its place in the cache, but for
one walk; all else is the real thing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from poros.demo.model import demo_model_folder
from poros.demo_settings import MODEL_FOLDER
from tests.engine.export.adapters import write_base
from tests.tui.pty_bench import Terminal

pytestmark = pytest.mark.long

ENTER = "\r"
SMALL, LARGE = (80, 24), (140, 45)
GARBAGE = re.compile(r"Traceback|\x1b|\[\??[\d;]+[a-zA-Z]")
"""What no screen shows: an exception of Python's, a piece of an escape code."""
NO_NETWORK = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "all")}
A_RUN_S = 2400.0
at_both_sizes = pytest.mark.parametrize("size", [SMALL, LARGE], ids=["80x24", "140x45"])


class Walk:
    """A person at the keyboard, who reads each screen before the next key."""

    def __init__(self, terminal: Terminal) -> None:
        """Before the first key."""
        self._terminal = terminal

    def sees(self, text: str, *, within_s: float = 300.0) -> None:
        """It comes up, and nothing that should not."""
        self._terminal.until(lambda: text in self._shown(), text, within_s=within_s)
        assert GARBAGE.findall(self._shown()) == []

    def enters(self, words: str = "", *, sees: str, within_s: float = 300.0) -> None:
        """Type words, if any, and Enter; then wait for what must come."""
        if words:
            self._terminal.press(words)
            self.sees(words)
        self._terminal.press(ENTER)
        self.sees(sees, within_s=within_s)

    def _shown(self) -> str:
        return "\n".join(self._terminal.screen())


def prepared(walk: Walk) -> None:
    """Home to the last question of Config: every default is taken."""
    walk.sees("Start the guided setup")
    walk.enters(sees="Next: Model")
    walk.enters(sees="the demo's model")
    walk.enters(sees="Can be trained")
    walk.enters(sees="Take it")
    walk.sees("dropped")  # the tokens are counted
    walk.enters(sees="5 Where to")
    walk.sees("ready")
    walk.enters(sees="Lengths and batches")
    walk.enters(sees="The run's folder")
    walk.enters(sees="Enter starts the training")


def trained(walk: Walk) -> None:
    walk.enters(sees="Getting ready")
    walk.sees("Trained: 40 steps", within_s=A_RUN_S)
    walk.enters(sees="The run finished all 40 steps.")


def talked_and_exported(walk: Walk, size: tuple[int, int]) -> None:
    if size == SMALL:  # one pane at a time
        walk.enters(sees="before ")
    walk.enters(sees="New talk")  # the keyboard is in the field now
    walk.enters("Who are you?", sees="ready for the next question", within_s=A_RUN_S)
    if size == SMALL:
        walk.enters(sees="load it in Python")
    walk.enters(sees="Write the merged model to which folder?")
    walk.enters(sees="next word in", within_s=A_RUN_S)


def walked(home: Path, size: tuple[int, int]) -> None:
    """The whole path; then the adapter and the merged model lie there."""
    with Terminal([], home=home, size=size, **NO_NETWORK) as terminal:
        walk = Walk(terminal)
        prepared(walk)
        trained(walk)
        talked_and_exported(walk, size)
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.is_restored
    config = json.loads((home / "poros_demo/adapter/adapter_config.json").read_text("utf-8"))
    assert config["peft_type"] == "LORA"
    assert list((home / "poros_demo-merged").glob("*.safetensors"))


@pytest.mark.timeout(3000)
@at_both_sizes
def test_enter_through_the_defaults_trains_talks_and_exports(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    write_base(tmp_path / "cache" / "models" / MODEL_FOLDER, tie_word_embeddings=False)
    walked(tmp_path, size)


@pytest.mark.timeout(7200)
@at_both_sizes
def test_the_demo_s_own_model_goes_the_same_way(tmp_path: Path, size: tuple[int, int]) -> None:
    cached = demo_model_folder(lambda event: None)
    shutil.copytree(cached, tmp_path / "cache" / "models" / MODEL_FOLDER, copy_function=os.link)
    walked(tmp_path, size)
