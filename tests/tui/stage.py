"""What a key does, as rows of a table: pressed one after the other in one app."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from textual import events
from textual.pilot import Pilot
from textual.widgets import Input, Static

from poros_tui.app import PorosApp
from tests.tui.pilot import app_of, at, begun_at

See = Callable[[PorosApp], Any]


@dataclass(frozen=True)
class Row:
    """A key of a binding and what it brings about.

    Attributes:
        id: Of the binding.
        key: One of its keys, as Textual writes it.
        see: Reads what the key changes.
        then: What is seen after it, and was not before.
        first: Keys that lead there, or what is done to the app.
    """

    id: str
    key: str
    see: See
    then: Any
    first: str | Callable[[PorosApp], None] = ""


@dataclass(frozen=True)
class Stage:
    """An app on a screen, and the keys that are tried in it, in order.

    Attributes:
        mode: Its screen.
        rows: The keys.
        make: The app.
        act: What is done once the screen is up.
    """

    mode: str
    rows: tuple[Row, ...]
    make: Callable[[], PorosApp] = app_of
    act: Callable[[PorosApp, Pilot[Any]], Any] | None = None


INNER_FIRST = {
    ("enter", "list.choose", "doctor.next"),
    ("enter", "list.choose", "model.take"),
    ("enter", "list.choose", "data.take"),
    ("escape", "chat.back", "app.leave-field"),
}
"""A key that two bindings have on purpose, the inner one first: Enter chooses in a list, and goes
on where none is; Escape stops an answer, and leaves the field as everywhere."""

HEARD: list[str] = []
"""What was told to the engine, to commands and to the clipboard since the last key."""


def listening(app: PorosApp) -> PorosApp:
    """Nothing is started, told or copied: it is noted."""
    runs: Any = app.runs

    async def start(config: Path, *, settings: Any = (), flags: Any = ()) -> bool:
        HEARD.append(" ".join([f"start {config.name}", *settings]))
        return False

    runs.start = start
    runs.demo = lambda: HEARD.append("demo")
    runs.open = lambda listed: HEARD.append(f"open {listed.name}")
    runs.resume = lambda listed: HEARD.append(f"go on with {listed.name}")
    runs.go_on = lambda folder, settings=(): HEARD.append(f"go on in {folder.name}")
    runs.order = lambda command, then=None: HEARD.append(command)
    answer = app.make_task

    def make_task(arguments: Any, **about: Any) -> Any:
        HEARD.append(" ".join(arguments))
        return answer(arguments, **about)

    app.make_task = make_task
    app.copy_to_clipboard = lambda text: HEARD.append("copied" if text else "nothing copied")  # type: ignore[method-assign]
    return app


async def played(stage: Stage, size: tuple[int, int] = (120, 40)) -> list[str]:
    """Press all keys; what went otherwise, a line each."""
    wrong, clashes = [], set[str]()
    app = listening(begun_at(stage.mode, stage.make))
    async with app.run_test(size=size, notifications=True) as pilot:
        await at(app, pilot, stage.mode)
        if stage.act is not None:
            await stage.act(app, pilot)
        for row in stage.rows:
            if not isinstance(row.first, str):
                row.first(app)
            for key in row.first.split() if isinstance(row.first, str) else ():
                await _pressed(app, pilot, key)
            HEARD.clear()
            app.clear_notifications()
            before = row.see(app)
            await _pressed(app, pilot, row.key)
            await _until(app, pilot, row)
            after = row.see(app)
            clashes |= _clashes(app)
            if before == row.then or after != row.then:
                wrong.append(f"{row.id} ({row.key}): {before!r} became {after!r}, not {row.then!r}")
    return wrong + sorted(clashes)


def _clashes(app: PorosApp) -> set[str]:
    """Keys that mean two things where the keyboard is now, from its widget up to the app."""
    meant: dict[str, list[str]] = {}
    for _, bindings in app.screen._modal_binding_chain:
        for key, binding in bindings:
            if binding.id:
                meant.setdefault(key, []).append(binding.id)
    return {
        f"{key} is {' and '.join(ids)}"
        for key, ids in meant.items()
        if len(ids) > 1 and (key, *ids) not in INNER_FIRST
    }


async def _pressed(app: PorosApp, pilot: Pilot[Any], key: str) -> None:
    """As `Pilot.press`, without waiting until the process is idle after each key."""
    app.post_message(events.Key(key, key if len(key) == 1 else None))
    await _quiet(app, pilot)


async def _until(app: PorosApp, pilot: Pilot[Any], row: Row) -> None:
    for turn in range(400):
        if row.see(app) == row.then:
            break
        await asyncio.sleep(0.005)
        if turn % 10 == 9:
            await app.tick()
    await _quiet(app, pilot)


async def _quiet(app: PorosApp, pilot: Pilot[Any]) -> None:
    """What waits at the app and at the screen's widgets is done; twice: one asks the other."""
    for _ in range(2):
        done = asyncio.Event()
        app.call_later(done.set)
        await done.wait()
        await pilot._wait_for_screen()


def mode(app: PorosApp) -> str:
    """The screen that is shown."""
    return app.current_mode


def top(app: PorosApp) -> str:
    """What lies on top: a screen or a dialog."""
    return type(app.screen).__name__


def title(app: PorosApp) -> str:
    """Of the dialog on top; empty: there is none."""
    found = app.screen.query(".dialog-title")
    return str(found.first(Static).content) if found else ""


def focus(app: PorosApp) -> str:
    """Which widget has the keyboard; a field of any kind is an ``Input``."""
    return "Input" if isinstance(app.focused, Input) else type(app.focused).__name__


def heard(app: PorosApp) -> str:
    """The last thing that was told to somebody."""
    return HEARD[-1] if HEARD else ""


def said(app: PorosApp) -> str:
    """The first line of the newest notice."""
    notes = list(app._notifications)
    return notes[-1].message.splitlines()[0] if notes else ""


def has(name: str) -> See:
    """Whether the screen has a class."""
    return lambda app: app.screen.has_class(name)


def of_screen(get: Callable[[Any], Any]) -> See:
    """Something of the screen."""
    return lambda app: get(app.screen)
