"""Two runs side by side: both curves, what was set differently, what came out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from poros.errors import PorosError
from poros.runs import Run, compare
from poros_tui import glyphs, words
from poros_tui.screens.runs_detail import curve_of
from poros_tui.widgets.plot import Curve, Mark, Picture, Plot
from poros_tui.widgets.run_lines import LOOKS
from poros_tui.widgets.steady import Dialog

_NAMES = {
    "state": "state", "steps": "steps", "loss": "last loss", "eval_loss": "held-out loss",
    "tokens": "tokens", "tokens_per_s": "tokens/s", "device_peak_bytes": "peak on the card",
    "train_s": "time in steps",
}  # fmt: skip
_WITHOUT_NEWS = ("output_dir",)
_NUM_MARKS = 9


class CompareDialog(Dialog[None]):
    """The second run has signs on its curve: it is told apart without colours too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "escape,enter,c,q",
            "dismiss",
            "Close",
            id="compare.close",
            tooltip="In a comparison: close it",
        ),
    ]

    def __init__(self, first: Run, second: Run) -> None:
        """Neither may be gone."""
        super().__init__()
        self._runs = (first, second)

    def compose(self) -> ComposeResult:
        """Names, curves, differences."""
        with Vertical(classes="dialog compare"):
            yield Static(self._names(), classes="dialog-title")
            yield Plot(glyphs=glyphs.chosen(), id="compare-plot")
            with VerticalScroll():
                yield Static(self._differences(), id="compare-table")

    def on_mount(self) -> None:
        """Both curves in one frame."""
        self.query_one(".compare").border_subtitle = "esc closes"
        first, second = self._runs
        behind, before = list(curve_of(second, "other")), list(curve_of(first, "curve"))
        marks = [mark for curve in behind for mark in _marks(curve)]
        self.query_one(Plot).show(Picture(curves=(*behind, *before), marks=marks))
        self.query_one(VerticalScroll).focus()

    def _names(self) -> Content:
        line, sign = glyphs.chosen().full, glyphs.chosen().idle
        first, second = (words.shortened(words.safe(run.path.name), 28) for run in self._runs)
        return (
            Content.styled(f"{line * 3} {first}", "$accent")
            + Content("     ")
            + Content.styled(f"{line}{sign}{line} {second}", "$warning")
        )

    def _differences(self) -> Content:
        try:
            found = compare(self._runs)
        except PorosError as error:
            return Content.styled(str(error), "$error")
        rows = [
            (told, _told(name, a), _told(name, b))
            for name, told in _NAMES.items()
            for a, b in [found["results"][name]]
            if (a, b) != (None, None)
        ]
        settings = {k: v for k, v in found["settings"].items() if k not in _WITHOUT_NEWS}
        lines = [_line(*row) for row in rows]
        until = found["same_losses_until_step"]
        if until:
            lines.append(Content.styled(f"The very same losses up to step {until:,}.", "$success"))
        lines.append(Content(""))
        lines.append(Content.styled("Set differently" if settings else "Set alike", "$secondary"))
        lines += [_line(key, _told(key, a), _told(key, b)) for key, (a, b) in settings.items()]
        return Content("\n").join(lines)


def _marks(curve: Curve) -> Iterator[Mark]:
    """Signs along a curve: without colours, and for who can't tell them apart."""
    for place in np.linspace(curve.x[0], curve.x[-1], _NUM_MARKS):
        index = int(np.searchsorted(curve.x, place))
        yield Mark(float(curve.x[index]), float(curve.y[index]), glyphs.chosen().idle, "other")


def _line(name: str, first: str, second: str) -> Content:
    differs = "bold" if first != second else ""
    cells = [words.shortened(words.safe(text), 22) for text in (first, second)]
    return (
        Content.styled(f"{name:<28}", "$quiet")
        + Content.styled(f"{cells[0]:<24}", differs)
        + Content.styled(cells[1], differs)
    )


def _told(name: str, value: Any) -> str:
    if name == "state":
        return LOOKS[value].word
    if value is None:
        return "not set" if name not in _NAMES else ""
    if name.endswith("_bytes"):
        return words.gigabytes(value) if value else ""
    if name.endswith("_s") and name != "tokens_per_s":
        return words.duration(value)
    if name in ("loss", "eval_loss"):
        return f"{value:.4f}"
    if name == "tokens_per_s":
        return words.count(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
