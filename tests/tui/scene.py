"""What a picture shows: a screen in one of its states, made from recorded things only."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from textual.pilot import Pilot

from poros_tui.app import PorosApp
from tests.tui.pilot import app_of

SMALL, LARGE = (80, 24), (120, 40)
SIZES = (SMALL, LARGE)


async def nothing(app: PorosApp, pilot: Pilot[Any]) -> None:
    """The screen as it comes up."""


@dataclass(frozen=True)
class Scene:
    """One state of a screen.

    Attributes:
        screen: A mode.
        state: ``empty``, ``ok``, ``error``, and what else is worth a picture.
        make: The app; begin with `app_of`, which lets nothing of this machine in.
        act: What is pressed or set, once the screen is up.
        sizes: Columns and rows.
        theme: By Textual's name.
    """

    screen: str
    state: str
    make: Callable[[], PorosApp] = app_of
    act: Callable[[PorosApp, Pilot[Any]], Awaitable[None]] = nothing
    sizes: tuple[tuple[int, int], ...] = SIZES
    theme: str = "dark"

    @property
    def name(self) -> str:
        """Of its files, but for the size."""
        return f"{self.screen}-{self.state}"

    @property
    def no_color(self) -> bool:
        """As if NO_COLOR were set."""
        return self.state == "no-color"

    def without_colours(self, sizes: tuple[tuple[int, int], ...] = (SMALL,)) -> Self:
        """Its ``no-color`` picture, in a small window."""
        return replace(self, state="no-color", sizes=sizes)

    def in_light(self) -> Self:
        """Its ``light`` picture, in a large window."""
        return replace(self, state="light", theme="light", sizes=(LARGE,))
