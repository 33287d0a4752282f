"""The Result screen in tests: a finished demo run, and a talker that says what it is told to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from poros_tui.app import PorosApp
from poros_tui.screens.result import ResultScreen
from poros_tui.screens.result_chat import ChatPane
from poros_tui.screens.result_facts import Asked, Outcome, OutcomeReader
from poros_tui.state import AppState
from tests.tui.pilot import app_of

FOLDER = Path("/home/ada/poros_demo")
FINISHED = Outcome(
    folder=FOLDER,
    state="finished",
    title="smollm2-135m-instruct on voice.jsonl",
    lead="The run finished all 40 steps.",
    when="21 September 2026, 14:02 to 14:11",
    tiles=(
        ("loss", "0.9312", "from 3.8120"),
        ("held-out loss", "1.1044", "from 3.9021"),
        ("steps", "40", "of 40"),
        ("time in steps", "8 min 12 s", "12.3 s a step"),
        ("tokens", "9,640", "20 a second"),
        ("waiting for copies", "0.1 %", "212 MB copied a step"),
        ("host memory", "1.42 GB", "the process, at most"),
    ),
    asked=(
        Asked(
            "Why do ships carry an anchor?",
            "Ships carry an anchor to help them stay in place in the water and to prevent them"
            " from drifting away from the shore.",
            "Aye, an anchor grips the bottom so wind and tide cannot carry the ship away. Keep the"
            " lamp lit.",
        ),
        Asked("What is fog?", "Fog is a cloud.", "Aye, fog is a cloud. Keep the lamp lit."),
    ),
    adapter=FOLDER / "adapter",
    adapter_bytes=19_600_000,
    is_final=True,
    base="HuggingFaceTB/SmolLM2-135M-Instruct",
    load_lines=(
        "import torch; from peft import PeftModel; from transformers import AutoModelForCausalLM",
        "base = AutoModelForCausalLM.from_pretrained('/home/ada/smollm2', device_map='cpu', ...)",
        "model = PeftModel.from_pretrained(base, '/home/ada/poros_demo/adapter')",
    ),
)
FAILED = Outcome(
    folder=FOLDER,
    state="failed",
    title="Qwen2.5-7B on harbour-voice.jsonl",
    lead="The run failed at step 12 of 151: the loss is not finite -> lower learning_rate",
    when="21 September 2026, 14:02 to 14:04",
    tiles=(("loss", "2.8120", "from 2.7990"), ("steps", "12", "of 151")),
    notes=("The last checkpoint is of step 10.",),
    adapter=FOLDER / "checkpoints" / "step-000010",
    adapter_bytes=161_000_000,
    base="Qwen/Qwen2.5-7B-Instruct",
)


class StandingReader(OutcomeReader):
    """Says always the same."""

    def __init__(self, outcome: Outcome) -> None:
        """No folder is read."""
        super().__init__()
        self.latest = outcome

    def follow(self, folder: Path | None) -> None:
        """Nothing to do."""


class Scripted:
    """Answers each question with the lines that were given for it."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        """Ready at once."""
        self.sent: list[Any] = []
        self.hung_up = False
        self.done = False
        self.result: Any = None
        self.elapsed_s = 3.0
        self._answers = list(answers)
        self._waiting: list[Any] = [
            {"event": "phase", "phase": "load"},
            {"event": "ready", "base": "b", "context_tokens": 8192},
        ]

    def drain(self) -> list[Any]:
        """What is said now."""
        found, self._waiting = self._waiting, []
        return found

    def send(self, value: Any) -> None:
        """A question, or an order."""
        self.sent.append(value)
        if "say" in value and self._answers:
            self._waiting += self._answers.pop(0)

    def hang_up(self) -> None:
        """It may go."""
        self.hung_up = True


def said(text: str, who: str = "adapter") -> list[dict[str, Any]]:
    """The lines of one answer, word by word."""
    bits = [{"event": "text", "who": who, "text": f"{word} "} for word in text.split()]
    return [*bits, {"event": "answered", "who": who, "text": text, "stopped": False}]


END = {"event": "turn_finished", "stopped": False, "used_tokens": 80, "context_tokens": 8192}


def result_app() -> PorosApp:
    """An app whose run is chosen."""
    return app_of(AppState(run_folder=FOLDER))


async def shown(app: PorosApp, pilot: Pilot[Any], outcome: Outcome = FINISHED) -> ResultScreen:
    """The screen with an outcome."""
    screen = app.screen
    assert isinstance(screen, ResultScreen)
    screen.reader = StandingReader(outcome)
    for _ in range(2):  # lines are cut to the width that the first one gave
        await app.tick()
        await pilot.pause()
    return screen


async def until(app: PorosApp, pilot: Pilot[Any], true: Callable[[], bool]) -> None:
    """Tick until something holds; a busy machine takes its time."""
    for _ in range(1000):
        await app.tick()
        await pilot.pause()
        if true():
            return
        await pilot.pause(0.02)
    raise AssertionError("it never came")


def talks(screen: ResultScreen, *answers: list[dict[str, Any]]) -> Scripted:
    """Let the pane talk to a script."""
    talker = Scripted(*answers)
    screen.query_one(ChatPane)._start = lambda adapter: talker
    return talker


def write_run(folder: Path, lines: list[str], **about: Any) -> Path:
    """A run's folder with these events."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"format": 1, "run_id": "ab12cd34ef", "exact": True, "identity": about}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "events.jsonl").write_text("".join(lines))
    (folder / "config.yaml").write_text("lora_rank: 16\n")
    return folder
