"""The keys of the Train screen, and what those that are about its curve do."""

from __future__ import annotations

from textual.binding import Binding

from poros_tui.screens.base import PorosScreen
from poros_tui.screens.train_curves import AXES, QUANTITIES, SMOOTHINGS, View


def _key(key: str, action: str, id: str, does: str, short: str = "") -> Binding:
    return Binding(key, action, short, id=f"train.{id}", show=bool(short), tooltip=does)


RUN_KEYS = (
    _key("c", "order('checkpoint')", "checkpoint", "Save a checkpoint now", "Save"),
    _key("p", "pause", "pause", "Pause the training, or go on", "Pause"),
    _key("s", "stop", "stop", "Stop after this step, and save", "Stop"),
    _key("x", "abort", "abort", "Abort at once, without saving"),
    _key("d", "detach", "detach", "Leave Poros; the training goes on"),
    _key("enter", "result", "result", "See what it learned", "Result"),
    _key("r", "resume", "resume", "Go on from the last checkpoint, or begin anew", "Go on"),
    _key("a", "apply", "apply", "Make the change that helps, and go on", "Mend"),
    _key("z", "page('plot')", "plot", "The plot alone, or all", "Plot"),
    _key("m", "page('answers')", "answers", "All answers of the model, or all", "Answers"),
    _key("l", "page('log')", "log", "The log alone, or all", "Log"),
    _key("slash", "find", "find", "Find in the log"),
    _key("n", "next_answer", "next-answer", "Next prompt's answer"),
    _key("space", "freeze", "freeze", "Hold the display still, or let it go on"),
    _key("backspace", "put_away", "put-away", "Put the notice away"),
)
"""What is told to the run, and which of its parts are shown."""

CURVE_KEYS = (
    _key("v", "next_quantity", "quantity", "Another curve: gradient norm, learning rate, ..."),
    _key("y", "toggle_log", "log-scale", "Logarithmic or linear scale"),
    _key("w", "next_smoothing", "smoothing", "Smoothing: off, light, medium, strong"),
    _key("t", "next_axis", "axis", "Over steps, time or tokens"),
    _key("plus,equals_sign", "zoom(1)", "zoom-in", "Closer"),
    _key("minus", "zoom(-1)", "zoom-out", "Further away"),
    _key("left", "cursor(-0.02)", "cursor-left", "Read the curve further left"),
    _key("right", "cursor(0.02)", "cursor-right", "Read the curve further right"),
    _key("0", "reset_view", "reset", "The whole curve again"),
)
"""How the curve is drawn."""


class CurveScreen(PorosScreen):
    """A screen with a curve that keys change."""

    def __init__(self) -> None:
        """The whole curve of the loss."""
        super().__init__()
        self.view = View()

    def redraw(self) -> None:
        """Show a change of the view."""
        raise NotImplementedError

    def action_next_quantity(self) -> None:
        """Another curve."""
        self.view.quantity = _after(QUANTITIES, self.view.quantity)
        self.redraw()

    def action_next_smoothing(self) -> None:
        """More, until none."""
        self.view.smoothing = _after(tuple(SMOOTHINGS), self.view.smoothing)
        self.redraw()

    def action_next_axis(self) -> None:
        """Over something else."""
        self.view.axis = _after(AXES, self.view.axis)
        self.redraw()

    def action_toggle_log(self) -> None:
        """The other scale."""
        self.view.is_log = not self.view.is_log
        self.redraw()

    def action_zoom(self, by: int) -> None:
        """A half of the window, or twice."""
        self.view.zoomed(by)
        self.redraw()

    def action_cursor(self, by: float) -> None:
        """Read the curve there."""
        self.view.moved(by)
        self.redraw()

    def action_reset_view(self) -> None:
        """All of it."""
        self.view.reset()
        self.redraw()


def _after(choices: tuple[str, ...], now: str) -> str:
    return choices[(choices.index(now) + 1) % len(choices)]
