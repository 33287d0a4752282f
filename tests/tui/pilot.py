"""An app in a test: no user's file is read or written, no thread samples, the clock stands."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.pilot import Pilot
from textual.widgets._footer import FooterKey

from poros_tui.app import PorosApp
from poros_tui.engine.machine import Machine, MachineWatch
from poros_tui.engine.run_list import RunList
from poros_tui.screens.config_facts import DataFacts, Lookup, ModelFacts
from poros_tui.settings import Settings
from poros_tui.state import AppState
from tests.tui.recorded import no_answer

NOW = 1_790_000_000.0
"""21 September 2026, 14:13 UTC: when every picture was made."""

MACHINE = Machine(
    card="NVIDIA GeForce RTX 4070",
    card_total_bytes=12_282_000_000,
    card_used_bytes=1_900_000_000,
    ram_total_bytes=33_500_000_000,
    ram_free_bytes=24_100_000_000,
    disk_free_bytes=212_000_000_000,
)


_parse = Stylesheet._parse_rules
_parsed: dict[tuple[Any, ...], list[RuleSet]] = {}


def _parse_once(sheet: Stylesheet, *given: Any, **named: Any) -> list[RuleSet]:
    """Each app parses all styles again, a sixth of a test's time; rules are never changed."""
    key = (*given, *sorted(named.items()), *sheet._variables.items())
    if key not in _parsed:
        _parsed[key] = _parse(sheet, *given, **named)
    return _parsed[key]


Stylesheet._parse_rules = _parse_once  # type: ignore[method-assign]

_first: ContextVar[str] = ContextVar("_first", default="home")


class StandingWatch(MachineWatch):
    """Says always the same."""

    def __init__(self, machine: Machine = MACHINE) -> None:
        """No folder is looked at."""
        self.latest = machine

    def start(self) -> None:
        """No thread."""

    def stop(self) -> None:
        """None to end."""


class StandingLookup(Lookup[Any]):
    """Says the same of all that was not put there; no thread, no network, no file."""

    def __init__(self, answer: Any) -> None:
        """``answer`` to every question."""
        super().__init__(lambda _: answer)

    def ask(self, question: str) -> Any:
        """At once."""
        if question and question not in self.answers:
            self._run(question)
        return self.answers.get(question)


def app_of(
    state: AppState | None = None,
    settings: Settings | None = None,
    machine: Machine = MACHINE,
    runs: RunList | None = None,
    make_task: Any = no_answer,
) -> PorosApp:
    """An app that touches nothing outside; ``make_task`` answers for the commands of `poros`."""
    if runs is None:
        runs = RunList()
        runs.refresh, runs.was_read = lambda: None, True  # type: ignore[method-assign]
    app = PorosApp(
        state or AppState(),
        settings or Settings(),
        watch=StandingWatch(machine),
        run_list=runs,
        clock=lambda: NOW,
        keep=False,
        first=_first.get(),
    )
    app.make_task = make_task
    lookups = app.draft.lookups
    lookups.models, lookups.data = StandingLookup(ModelFacts()), StandingLookup(DataFacts())
    lookups.rates = StandingLookup(None)
    lookups.refuse_missing = lambda _: None  # what is recorded is of files that are not here
    return app


def begun_at(mode: str, make: Callable[[], PorosApp]) -> PorosApp:
    """Make an app by way of `app_of` that opens on a mode; Home is not built before."""
    token = _first.set(mode)
    try:
        return make()
    finally:
        _first.reset(token)


def piloted(
    *,
    mode: str = "home",
    size: tuple[int, int] = (80, 24),
    make: Callable[[], PorosApp] = app_of,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[[], None]]:
    """Make a test of ``async def test(app, pilot)``, which begins on a mode's screen."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            app = begun_at(mode, make)
            async with app.run_test(size=size, notifications=True) as pilot:
                await at(app, pilot, mode)
                await test(app, pilot)

        @wraps(test)
        def in_loop() -> None:
            asyncio.run(run())

        # pytest must not take the arguments of the inner one for fixtures.
        del in_loop.__wrapped__  # type: ignore[attr-defined]
        return in_loop

    return decorate


async def at(app: PorosApp, pilot: Pilot[Any], mode: str) -> None:
    """Go to a mode and wait until it is drawn."""
    if app.current_mode != mode:
        await app.switch_mode(mode)
    await pilot.pause()
    await app.tick()
    await pilot.pause()


def footer(app: PorosApp) -> dict[str, str]:
    """What the last line calls each of its keys, by action."""
    return {key.action: key.description for key in app.screen.query(FooterKey)}
