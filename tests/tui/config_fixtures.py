"""The wizard in tests: a 7B model's headers and 1,204 rows are known, nothing is looked up."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from poros.check import check_model
from poros.check_memory import TextHeaders
from poros.memory_planner import Rates
from poros_tui.app import PorosApp
from poros_tui.engine.machine import Machine
from poros_tui.screens.config import ConfigScreen
from poros_tui.screens.config_facts import DataFacts, ModelFacts
from poros_tui.state import AppState
from tests.engine.header_models import QWEN_7B, qwen_tensors, write_headers
from tests.tui.pilot import MACHINE, StandingLookup, app_of

MODEL, DATA = "Qwen/Qwen2.5-7B-Instruct", "harbour-voice.jsonl"
RATES = Rates(24e9, 60e12)


class Unanswered(StandingLookup):
    """Nothing is ever found out."""

    def ask(self, question: str) -> Any:
        """What was put there."""
        return self.answers.get(question)


@cache
def headers() -> TextHeaders:
    """Of a model with the shapes of Qwen2.5-7B."""
    with tempfile.TemporaryDirectory() as folder:
        text = check_model(str(write_headers(Path(folder) / "m", QWEN_7B, qwen_tensors(QWEN_7B))))
    assert text.text is not None
    return text.text


def wizard_app(machine: Machine = MACHINE, **state: Any) -> PorosApp:
    """An app whose model and data are chosen."""
    chosen: dict[str, Any] = {"model": MODEL, "data": DATA} | state
    return app_of(AppState(**chosen), machine=machine)


async def known(app: PorosApp, pilot: Pilot[Any]) -> ConfigScreen:
    """What a look-up would bring."""
    screen = app.screen
    assert isinstance(screen, ConfigScreen)
    app.draft.lookups.models.put(MODEL, ModelFacts(headers(), "7.6 billion weights, here"))
    app.draft.lookups.data.put(DATA, DataFacts(1204, "1,204 rows"))
    app.draft.lookups.rates.put(MACHINE.card, RATES)
    await app.tick()
    await pilot.pause()
    return screen
