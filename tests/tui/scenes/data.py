"""The states of the screen `data` that have pictures, from recorded answers of `poros data`."""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from poros.data_raw import raw_rows
from poros.demo_settings import train_path
from poros_tui.app import PorosApp
from poros_tui.state import AppState
from tests.tui.pilot import app_of
from tests.tui.recorded import RecordedTask, answers
from tests.tui.scene import Scene

RECORDINGS = Path(__file__).parents[1] / "recordings"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
FILE = "/home/sam/tuning/voice.jsonl"


@cache
def recorded(name: str) -> Any:
    """A kept answer with tokens."""
    return json.loads((RECORDINGS / f"{name}.json").read_text("utf-8"))


@cache
def raw() -> dict[str, Any]:
    """The demo's rows as they stand."""
    return raw_rows(str(train_path())) | {"data": FILE}


@cache
def odd() -> dict[str, Any]:
    """Rows whose keys fit no shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "voice.jsonl"
        path.write_text('{"question": "Who are you?", "answer": "A keeper."}\n' * 2)
        return raw_rows(str(path)) | {"data": FILE}


def data_app(
    raw_answer: Callable[[], Any] = raw,
    counted: Callable[[], Any] | None = None,
    model: str = MODEL,
    chosen: str = FILE,
    **task: Any,
) -> Callable[[], PorosApp]:
    """An app whose `poros data` says what was recorded; without ``counted`` tokens never come."""

    def answer(words: Any) -> RecordedTask:
        if "-m" not in words:
            return RecordedTask(words, [raw_answer()])
        if counted is None:
            return RecordedTask(words, goes_on=True)
        return RecordedTask(words, [counted()], **task)

    return lambda: app_of(AppState(model=model, data=chosen), make_task=answers({"data": answer}))


NOT_INSTALLED = {
    "error": {"message": "torch is not installed", "code": "E-config", "exit_code": 2,
              "remediation": 'pip install "poros-tui[train]"'}
}  # fmt: skip

SCENES = [
    Scene("data", "empty", data_app(model="", chosen="")),
    Scene("data", "raw", data_app(counted=lambda: NOT_INSTALLED, exit_code=2), sizes=((80, 24),)),
    Scene("data", "ok", data_app(counted=lambda: recorded("data-voice"))),
    Scene("data", "cut", data_app(counted=lambda: recorded("data-cut")), sizes=((120, 40),)),
    Scene("data", "error", data_app(odd, model="")),
]  # fmt: skip
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["ok"].without_colours(), by_state["ok"].in_light()]
