"""The block map: every block of the model, which stay on the card, and those that stream through.

Two lanes of one sign a block. Above: what lies on the card. Below: what waits in RAM for its turn.
A block that arrives shows in both, as its bytes are in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from poros_tui.glyphs import FANCY, Glyphs

STAYS, ON_CARD, ARRIVES, COMPUTES, WAITS = "r", "d", "a", "c", "."
"""The engine's signs for a block's state."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """One sample of the blocks.

    Attributes:
        states: One sign of the engine for each block, from the input to the output.
        passed: Blocks that computed since the sample before, so that none is missed by the eye.
        direction: ``forward``, ``backward``, or empty between passes.
        on_cpu: There is no card: blocks pass through slots in RAM as well.
    """

    states: str = ""
    passed: frozenset[int] = frozenset()
    direction: str = ""
    on_cpu: bool = False


def planned(num_blocks: int, resident: Sequence[int], *, on_cpu: bool = False) -> Blocks:
    """What a plan says: who stays; all others wait."""
    stays = set(resident)
    states = "".join(STAYS if i in stays else WAITS for i in range(num_blocks))
    return Blocks(states, on_cpu=on_cpu)


def passed_between(before: int | None, now: int, direction: str, num_blocks: int) -> frozenset[int]:
    """The blocks that were computed between two samples; at a turn, those after it.

    Args:
        before: The block that computed at the sample before; None: nobody knows.
        now: The one that computes now.
        direction: ``forward`` or ``backward``.
        num_blocks: Of the model.
    """
    if before is None or before == now:
        return frozenset()
    if direction == "backward":
        return frozenset(range(now + 1, before if before > now else num_blocks))
    return frozenset(range(before + 1 if before < now else 0, now))


class BlockMap(Widget):
    """Draws `Blocks` in as many rows as they need; a large model goes over several lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "blocks--stays",
        "blocks--card",
        "blocks--arrives",
        "blocks--computes",
        "blocks--waits",
        "blocks--passed",
        "blocks--lane",
    }
    DEFAULT_CSS = """
    BlockMap {
        height: auto;
        & > .blocks--stays { color: $accent 55%; }
        & > .blocks--card { color: $accent; }
        & > .blocks--arrives { color: $warning; }
        & > .blocks--computes { color: $foreground; text-style: bold; }
        & > .blocks--waits { color: $foreground 30%; }
        & > .blocks--passed { color: $accent 80%; }
        & > .blocks--lane { color: $foreground 50%; }
    }
    """

    def __init__(self, *, glyphs: Glyphs = FANCY, id: str | None = None) -> None:
        """No blocks yet."""
        super().__init__(id=id)
        self.glyphs = glyphs
        self.blocks = Blocks()

    def show(self, blocks: Blocks) -> None:
        """Draw these from now on."""
        if blocks == self.blocks:
            return
        needs_room = len(blocks.states) != len(self.blocks.states)
        self.blocks = blocks
        self.refresh(layout=needs_room)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Two rows a line."""
        return 2 * len(lines_of(len(self.blocks.states), width))

    def render_line(self, y: int) -> Strip:
        """A lane of a line."""
        lines = lines_of(len(self.blocks.states), self.size.width)
        if y // 2 >= len(lines):
            return Strip.blank(self.size.width, self.rich_style)
        styles = {name: self.get_component_rich_style(f"blocks--{name}") for name in _NAMES}
        styles["ground"] = self.rich_style
        return lane(self.blocks, lines[y // 2], y % 2, self.size.width, styles, self.glyphs)


_NAMES = ("stays", "card", "arrives", "computes", "waits", "passed", "lane")
LABELS = ("card  ", "RAM   ")
CPU_LABELS = ("slots ", "RAM   ")


def lines_of(num_blocks: int, width: int) -> list[range]:
    """Blocks line by line, evenly many on each."""
    room = max(1, width - len(LABELS[0]))
    if num_blocks == 0:
        return []
    num_lines = -(-num_blocks // room)
    each = -(-num_blocks // num_lines)
    return [range(first, min(first + each, num_blocks)) for first in range(0, num_blocks, each)]


def cell_width(num_blocks: int, width: int) -> int:
    """Columns for each block: as many as fit, at most five."""
    room = max(1, width - len(LABELS[0]))
    return max(1, min(5, room // max(1, num_blocks)))


def lane(
    blocks: Blocks, line: range, row: int, width: int, styles: dict[str, Style], glyphs: Glyphs
) -> Strip:
    """One lane: ``row`` 0 is the card, 1 is RAM."""
    wide = cell_width(len(line), width) if len(blocks.states) <= len(line) else 1
    label = (CPU_LABELS if blocks.on_cpu else LABELS)[row]
    segments = [Segment(label if line.start == 0 else " " * len(label), styles["lane"])]
    for index in line:
        sign, name = (_on_card if row == 0 else _in_ram)(blocks, index, glyphs)
        gap = " " if wide > 1 else ""
        tile = sign * (wide - len(gap))
        if name == "computes" and len(tile) > 1:
            back, on = glyphs.back + tile[1:], tile[1:] + glyphs.forward
            tile = {"backward": back, "forward": on}.get(blocks.direction, tile)
        segments.append(Segment(tile + gap, styles[name]))
    return Strip(segments).adjust_cell_length(width, styles["ground"])


def _on_card(blocks: Blocks, index: int, glyphs: Glyphs) -> tuple[str, str]:
    state = blocks.states[index]
    if state == COMPUTES:
        return glyphs.computing, "computes"
    if state == STAYS:
        return glyphs.resident, "passed" if index in blocks.passed else "stays"
    if state == ON_CARD:
        return glyphs.arrived, "card"
    if state == ARRIVES:
        return glyphs.arriving, "arrives"
    if index in blocks.passed:
        return glyphs.dot, "passed"
    return " ", "waits"


def _in_ram(blocks: Blocks, index: int, glyphs: Glyphs) -> tuple[str, str]:
    state = blocks.states[index]
    if state == ARRIVES:
        return glyphs.arriving, "arrives"
    return (glyphs.waiting, "waits") if state == WAITS else (" ", "waits")
