"""`PorosScreen`: the frame of every screen: header, mode bar, body, footer, ticks, help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.widget import Widget
from textual.widgets import OptionList, Static

from poros_tui.state import AppState
from poros_tui.widgets.header import Header
from poros_tui.widgets.key_line import KeyLine
from poros_tui.widgets.mode_bar import ModeBar
from poros_tui.widgets.steady import SteadyScreen

if TYPE_CHECKING:
    from poros_tui.app import PorosApp

MODES = {
    "home": "Home",
    "doctor": "Doctor",
    "model": "Model",
    "data": "Data",
    "config": "Config",
    "train": "Train",
    "result": "Result",
    "runs": "Runs",
}
"""Name and title of each screen, in the order of the number keys and of the guided path."""

WIDTHS = ((0, "-tiny"), (60, "-narrow"), (100, "-wide"))
HEIGHTS = ((0, "-low"), (20, "-short"), (30, "-tall"))
"""From so many columns, and rows, on a screen has the class."""

TOO_SMALL = "This window is too small for Poros.\nMake it at least 60 columns by 20 rows."


class PorosScreen(SteadyScreen[None]):
    """A mode. Subclasses give `body`, and `on_tick` for what changes by itself.

    A screen must work at 80x24. Style by the classes that it has by its size: ``-narrow``
    below 100 columns, ``-wide`` from there, ``-short`` below 30 rows, ``-tall`` from there;
    ``-plain`` where only ASCII may be drawn.

    Attributes:
        TITLE: What the mode bar calls it.
        HELP: What `?` says where the focused widget says nothing of its own.
        PARTS: Its widgets whose keys are commands of the screen too.
        LAYOUT_STYLE: ``scroll``: the body scrolls as a whole; ``fill``: it fills the window.
        key_names: What the footer calls keys that do something else now, by their actions.
    """

    # Textual's choice when a dialog closes over no focus would be the first field: the next key is
    # a command, not a letter of the model's name.
    AUTO_FOCUS: ClassVar[str | None] = ""
    HELP: ClassVar[str | None] = ""
    PARTS: ClassVar[tuple[type[Widget], ...]] = ()
    LAYOUT_STYLE: ClassVar[str] = "scroll"

    key_names: Mapping[str, str] = {}
    _keys_told: tuple[frozenset[str], Mapping[str, str]] = (frozenset(), {})
    is_built = False
    """All of it is mounted; before that no tick comes."""
    _fitted: Size | None = None

    def on_mount(self) -> None:
        """Everything below was mounted before this; subclasses' own `on_mount` is called too."""
        self.is_built = True
        self.fit()
        self.call_after_refresh(self.tick)

    @property
    def shell(self) -> PorosApp:
        """The app, with its own methods."""
        return cast("PorosApp", self.app)

    @property
    def state(self) -> AppState:
        """What all screens share."""
        return self.shell.state

    def compose(self) -> ComposeResult:
        """The frame; subclasses override `body`."""
        self._take_size_classes()  # before its parts are styled for the first time
        yield Header()
        yield ModeBar(MODES, here=self.mode_name)
        with VerticalScroll(id="body", classes=f"-{self.LAYOUT_STYLE}", can_focus=False):
            yield from self.body()
        yield Static(TOO_SMALL, id="too-small")
        yield KeyLine(lambda: self.idle_actions, lambda: self.key_names)

    def body(self) -> ComposeResult:
        """What stands between mode bar and footer."""
        raise NotImplementedError

    def on_tick(self, state: AppState) -> None:
        """Four times a second while this screen is shown, and once when it comes up.

        Read values, set widgets; anything that could take 10 ms goes into a thread or a process.
        """

    def on_fitted(self) -> None:
        """The window has another size and all is laid out: draw again what hangs on it."""
        self.on_tick(self.state)

    def explanation(self) -> str:
        """What `?` says about the focused widget: its ``told``, its parents', or the screen's."""
        for node in self.focused.ancestors_with_self if self.focused else ():
            told = getattr(node, "told", None) or getattr(node, "HELP", None)
            if told:
                return str(told)
        return self.HELP or ""

    def leave(self) -> None:
        """Escape: keys are commands again, and the arrows belong to the list, if there is one."""
        lists = [found for found in self.focus_chain if _takes_arrows(found)]
        if self.focused not in lists:
            self.set_focus(lists[0] if lists else None)

    @property
    def mode_name(self) -> str:
        """The key of `MODES`."""
        return type(self).__name__.removesuffix("Screen").lower()

    def tick(self) -> None:
        """Bring the frame up to date, then the screen's own; called by the app."""
        if not self.is_built or not self.app.is_running:
            return  # not put together yet, or being taken apart
        self.fit()
        self.query_one(Header).show(self.shell.summary())
        self.query_one(ModeBar).show(self.state.done)
        self.on_tick(self.state)
        told = (self.idle_actions, self.key_names)
        if told != self._keys_told:
            self._keys_told = told
            self.refresh_bindings()

    @property
    def idle_actions(self) -> frozenset[str]:
        """Actions that would do nothing now; their keys say so, and are not in the footer."""
        return frozenset()

    def fit(self) -> None:
        """The classes by size; Textual's own breakpoints miss a resize while another mode shows."""
        if self._take_size_classes():
            self.update_node_styles()
        if self.outer_size != self.app.size:
            self._screen_resized(self.app.size)
        if self._fitted not in (None, self.app.size):
            self.call_after_refresh(self._refit)
        self._fitted = self.app.size

    def _take_size_classes(self) -> bool:
        """Whether there are others than before; the styles are left to the caller, once for all."""
        width, height = self.app.size
        before = self.classes
        for limits, size in ((WIDTHS, width), (HEIGHTS, height)):
            fitting = [name for least, name in limits if size >= least][-1]
            for _, name in limits:
                self.set_class(name == fitting, name, update=False)
        return self.classes != before

    def _refit(self) -> None:
        if self.app.screen is not self:
            # The classes changed the room since, and below a dialog nothing is laid out by itself.
            self._screen_resized(self.app.size)
        self.on_fitted()
        # Parts that are as high as their text were measured with the text of the size before.
        for part in self.query("Static, Facts"):
            part.refresh(layout=True)

    def on_resize(self) -> None:
        """At once, once it is laid out; below a dialog the tick does it."""
        if self.is_built:
            self.call_after_refresh(self.fit)

    def on_screen_resume(self) -> None:
        """Another screen was left for this one."""
        self.tick()


def _takes_arrows(widget: Widget) -> bool:
    return isinstance(widget, OptionList) or getattr(widget, "is_list", False)
