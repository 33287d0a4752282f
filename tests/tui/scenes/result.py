"""The states of the screen `result` that have pictures."""

from typing import Any

from textual.pilot import Pilot

from poros_tui.app import PorosApp
from poros_tui.screens.result_chat import ChatPane
from poros_tui.screens.result_jobs import Told
from tests.tui.result_fixtures import END, FAILED, result_app, said, shown, talks, until
from tests.tui.scene import Scene


async def ok(app: PorosApp, pilot: Pilot[Any]) -> None:
    """A finished run."""
    await shown(app, pilot)


async def error(app: PorosApp, pilot: Pilot[Any]) -> None:
    """A run that failed."""
    await shown(app, pilot, FAILED)


async def talk(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Two answers, the second with the untrained model's."""
    screen = await shown(app, pilot)
    pane = screen.query_one(ChatPane)
    talker = talks(
        screen,
        [*said("Aye, I keep the light, and the light keeps the ships. Keep the lamp lit."), END],
        [*said("The sea is blue because water absorbs red light.", "base"),
         *said("Aye, water drinks the red of the sun and gives back the blue."), END],
    )  # fmt: skip
    for question in ("Who are you?", "Why is the sea blue?"):
        await pilot.press("c")
        screen.query_one("#question").value = question
        await pilot.press("enter")
        await until(app, pilot, lambda: bool(talker.sent) and not pane.is_answering)
        talker.sent.clear()


async def use(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Exported and reported."""
    screen = await shown(app, pilot)
    screen.exporting.told = Told(
        "ok", "269 MB in ~/poros_demo-merged; the same next word in 3 of 3 prompts as with the"
        " adapter"
    )  # fmt: skip
    screen.reporting.told = Told("ok", "~/poros_demo/report.html: open it in a browser, or send it")
    await pilot.press("u")
    await app.tick()


async def samples(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Before and after."""
    await shown(app, pilot)
    await pilot.press("b")


SCENES = [
    Scene("result", "empty"),
    Scene("result", "ok", result_app, ok),
    Scene("result", "error", result_app, error),
    Scene("result", "talk", result_app, talk),
    Scene("result", "use", result_app, use, sizes=((80, 24),)),
    Scene("result", "samples", result_app, samples, sizes=((80, 24),)),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["talk"].without_colours(), by_state["talk"].in_light()]
