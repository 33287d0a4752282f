"""The states of the screen `config` that have pictures."""

from typing import Any

from textual.pilot import Pilot

from poros_tui.app import PorosApp
from poros_tui.engine.machine import Machine
from poros_tui.screens.config_draft import Lengths
from tests.tui.config_fixtures import DATA, MODEL, Unanswered, known, wizard_app
from tests.tui.scene import Scene


async def unknown(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Nothing is chosen."""
    await known(app, pilot)


async def ok(app: PorosApp, pilot: Pilot[Any]) -> None:
    """The third question has the keyboard."""
    await known(app, pilot)


async def error(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Three entries are wrong."""
    screen = await known(app, pilot)
    for key, text in (("lora_rank", "0"), ("lr_scheduler", "cosin"), ("learning_rate", "fast")):
        screen.wizard.enter(key, text)
    screen.show_all()
    await screen.go_to_problem()
    await pilot.pause()


async def settings(app: PorosApp, pilot: Pilot[Any]) -> None:
    """A section is open, with what each setting does."""
    screen = await known(app, pilot)
    screen.wizard.enter("lora_rank", "64")
    screen.query_one("#group-adapter").collapsed = False
    await pilot.pause()
    for _ in range(60):  # the effects come from a thread
        await pilot.pause(0.05)
        if screen._effects.told("lora_rank"):
            break
    await app.tick()
    next(row for row in screen.query("Row") if row.key == "lora_rank").take_keyboard()
    await pilot.pause()


async def preview(app: PorosApp, pilot: Pilot[Any]) -> None:
    """As a file."""
    screen = await known(app, pilot)
    screen.wizard.enter("lora_rank", "64")
    screen.show_all()
    await pilot.press("f6")


def small_card() -> PorosApp:
    card = Machine("NVIDIA T400 4GB", 4_000_000_000, 3_000_000_000, 16 * 10**9, 9 * 10**9, 10**11)
    return wizard_app(card)


async def tight(app: PorosApp, pilot: Pilot[Any]) -> None:
    """It does not fit."""
    screen = await known(app, pilot)
    screen.wizard.enter("max_seq_length", "16384")
    screen.show_all()


async def unchecked(app: PorosApp, pilot: Pilot[Any]) -> None:
    """The model is looked at still."""
    screen = await known(app, pilot)
    screen.wizard.enter("model_name_or_path", "Qwen/Qwen2.5-14B-Instruct")
    screen.show_all()


async def cut(app: PorosApp, pilot: Pilot[Any]) -> None:
    """Some samples are longer than they may be."""
    app.draft.lengths = Lengths(DATA, MODEL, 2048, [300] * 1167, [2600] * 37)
    await known(app, pilot)


def never_told() -> PorosApp:
    """What was not looked up before is not known."""
    app = wizard_app()
    app.draft.lookups.models = Unanswered(None)
    return app


SCENES = [
    Scene("config", "empty", lambda: wizard_app(model="", data=""), unknown),
    Scene("config", "ok", wizard_app, ok),
    Scene("config", "error", wizard_app, error),
    Scene("config", "settings", wizard_app, settings),
    Scene("config", "file", wizard_app, preview, sizes=((120, 40),)),
    Scene("config", "cut", wizard_app, cut),
    Scene("config", "unchecked", never_told, unchecked, sizes=((80, 24),)),
    Scene("config", "tight", small_card, tight, sizes=((80, 24),)),
]
by_state = {scene.state: scene for scene in SCENES}
SCENES += [by_state["error"].without_colours(), by_state["error"].in_light()]
