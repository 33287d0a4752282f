"""Every action of the app with its key: for the palette, `?`, `poros-tui keys` and the keymap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module

from textual.binding import Binding, BindingType
from textual.widget import Widget

from poros_tui.screens.base import MODES, PorosScreen

_AS_WRITTEN = {
    "question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]",
    "escape": "esc", "up": "↑", "down": "↓", "left": "←", "right": "→", "full_stop": ".",
    "comma": ",", "plus": "+", "minus": "-", "equals_sign": "=", "pageup": "pgup",
    "pagedown": "pgdn", "delete": "del",
}  # fmt: skip
_SHARED = {
    "widgets.entry_list": ("EntryList",), "widgets.fit_table": ("FitTable",),
    "widgets.choice": ("Choice",), "widgets.steady": ("Choices",),
    "screens.config_rows": ("Entry",),
    "widgets.confirm": ("ConfirmDialog",),
    "widgets.path_dialog": ("PathDialog",), "widgets.waiting": ("WaitingDialog",),
    "widgets.help_panel": ("HelpDialog",), "screens.runs_compare": ("CompareDialog",),
    "screens.config_preview": ("PreviewDialog", "PathDialog"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person can do.

    Attributes:
        id: Its name in the keymap, such as ``train.checkpoint``.
        screen: The mode it belongs to; empty: everywhere.
        keys: As Textual writes them, joined by commas.
        does: What it does, in a few words.
        action: What Textual runs.
        part: The widget of the screen that runs it; None: the screen, or the app.
    """

    id: str
    screen: str
    keys: str
    does: str
    action: str
    part: type[Widget] | None = None

    @property
    def title(self) -> str:
        """``Train: checkpoint now``."""
        return f"{MODES[self.screen]}: {self.does}" if self.screen else self.does


def screen_class(name: str) -> type[PorosScreen]:
    """A mode's class; its module is imported only now."""
    module = import_module(f"poros_tui.screens.{name}")
    found: type[PorosScreen] = getattr(module, f"{name.title()}Screen")
    return found


def app_actions(bindings: list[BindingType]) -> Iterator[Action]:
    """Those of the app itself."""
    yield from _actions(bindings, "")


def screen_actions(name: str) -> Iterator[Action]:
    """Those of a mode, declared in its ``BINDINGS`` and in those of its ``PARTS``."""
    found = screen_class(name)
    yield from _actions(list(vars(found).get("BINDINGS", ())), name)
    for part in found.PARTS:
        for action in _actions(part.BINDINGS, name):
            yield replace(action, part=part)


def shared_actions() -> Iterator[Action]:
    """Those of lists, tables and dialogs, wherever one stands: they move, choose and close."""
    for module, names in _SHARED.items():
        for name in names:
            shared = getattr(import_module(f"poros_tui.{module}"), name)
            yield from _actions(vars(shared)["BINDINGS"], "")


def all_actions(app_bindings: list[BindingType]) -> Iterator[Action]:
    """The app's, then each mode's."""
    yield from app_actions(app_bindings)
    for name in MODES:
        yield from screen_actions(name)


def written(keys: str) -> str:
    """The first of a binding's keys as people write it: ``ctrl+p``, ``?``, ``esc``."""
    first = keys.split(",")[0]
    head, plus, last = first.rpartition("+")
    return head + plus + _AS_WRITTEN.get(last, last)


def told(
    name: str, app_bindings: list[BindingType], chosen: Mapping[str, str]
) -> list[tuple[str, str]]:
    """The keys that work on a screen, and what each does; the modes' numbers are one line.

    Args:
        name: The mode.
        app_bindings: The app's own.
        chosen: The user's keys, by the names of their actions.
    """

    def pressed(action: Action) -> str:
        return chosen.get(action.id, action.keys)

    own = list(screen_actions(name))
    keys_of_own = {pressed(action) for action in own}
    # A key that the screen uses for more than the app does is told once.
    here = [*own, *(a for a in app_actions(app_bindings) if pressed(a) not in keys_of_own)]
    lines = {a.id: (written(pressed(a)), a.does) for a in here}
    numbers = [lines[f"go.{mode}"][0] for mode in MODES]
    if numbers == [str(number) for number in range(1, len(MODES) + 1)]:
        lines = {id: line for id, line in lines.items() if not id.startswith("go.")}
        lines["go"] = (f"{numbers[0]} to {numbers[-1]}", "Go to the screen of that number")
    return list(lines.values())


def _actions(bindings: list[BindingType], screen: str) -> Iterator[Action]:
    for binding in bindings:
        if isinstance(binding, Binding) and binding.id:
            does = binding.tooltip or binding.description
            yield Action(binding.id, screen, binding.key, does, binding.action)
