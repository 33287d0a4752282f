"""The top line: what the run does, what of card and disk is free, the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widget import Widget

from poros_tui import glyphs, words

if TYPE_CHECKING:
    from poros_tui.engine.followed import FollowedRun

_LOOKS = {
    "finished": ("ok", "success"),
    "stopped": ("paused", "warning"),
    "paused": ("paused", "warning"),
    "failed": ("error", "error"),
    "killed": ("error", "error"),
    "lost": ("error", "error"),
    "ended": ("idle", "quiet"),
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What the header says.

    Attributes:
        state: Of the followed run, a word; empty: no run.
        glyph: Before the state.
        colour: Theme variable of both, without its sign.
        about: Model and data.
        facts: From the most important on; the last ones go where there is no room.
    """

    state: str = ""
    glyph: str = ""
    colour: str = "quiet"
    about: str = ""
    facts: tuple[str, ...] = ()


def summary_of(followed: FollowedRun | None, facts: tuple[str, ...]) -> Summary:
    """The shown run in a few words."""
    if followed is None:
        return Summary(facts=facts)
    run = followed.run
    status = "starting" if followed.is_starting else run.status
    if not followed.is_going and not run.has_ended:
        ending = followed.ending if followed.caught_up else None
        status = ending.status if ending is not None else "ended"
    sign, colour = _LOOKS.get(status, ("busy", "accent"))
    glyph = str(getattr(glyphs.chosen(), sign))
    share = ""
    if run.total_steps and run.step and not followed.is_starting:
        share = f" {100 * run.step // run.total_steps} %"
    model = run.started.model.rstrip("/").rpartition("/")[2] if run.started else ""
    about = words.safe(" · ".join(filter(None, (model, followed.folder.name))))
    return Summary(f"{status}{share}", glyph, colour, about, facts)


class Header(Widget):
    """One line."""

    def __init__(self) -> None:
        """Empty until `show`."""
        super().__init__()
        self._summary = Summary()

    def show(self, summary: Summary) -> None:
        """Draw again if something is new."""
        if summary != self._summary:
            self._summary = summary
            self.refresh()

    def render(self) -> Content:
        """Left the run, right the facts; what has no room goes from the right end of either."""
        room = self.size.width - 2
        name = Content.styled("Poros", "bold $accent")
        state = Content("")
        if self._summary.state:
            colour = f"${self._summary.colour}"
            state = Content.styled(f"   {self._summary.glyph} {self._summary.state}", colour)
        facts = list(self._summary.facts)
        left = name + state
        while facts and left.cell_length + len("   ".join(facts)) + 3 > room:
            facts.pop()
        right = "   ".join(facts)
        spare = room - left.cell_length - len(right)
        about = self._summary.about
        if about and spare > 14:
            if len(about) > spare - 6:
                about = about.rpartition(" · ")[2]  # a few letters of the model tell nothing
            shown = words.shortened(about, spare - 6, glyphs.chosen().dots)
            left += Content.styled(f"   {shown}", "$quiet")
        gap = max(1, room - left.cell_length - len(right))
        return left + Content(" " * gap) + Content.styled(right, "$secondary")
