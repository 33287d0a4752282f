"""Card, RAM and disk in a line each, with a bar for what is taken."""

from __future__ import annotations

from textual.content import Content

from poros_tui import glyphs, words
from poros_tui.engine.machine import Machine


def told(machine: Machine, room: int) -> Content:
    """What is known, in lines of at most ``room`` columns."""
    lines = [
        Content.styled(words.shortened(machine.card or "No NVIDIA card is seen", room), "bold")
    ]
    if machine.card_total_bytes is not None:
        used = machine.card_used_bytes or 0
        lines.append(_line("card", used, machine.card_total_bytes, room))
    if machine.ram_total_bytes is not None and machine.ram_free_bytes is not None:
        used = machine.ram_total_bytes - machine.ram_free_bytes
        lines.append(_line("RAM", used, machine.ram_total_bytes, room))
    if machine.disk_free_bytes is not None:
        free = f"{words.gigabytes(machine.disk_free_bytes)} free"
        lines.append(Content.styled("disk  ", "$quiet") + Content.styled(free, "$secondary"))
    return Content("\n").join(lines)


def _line(name: str, used: int, total: int, room: int) -> Content:
    text = f"  {words.of_gigabytes(used, total)} used"
    width = max(4, room - 6 - len(text))
    full = min(width, round(width * used / total)) if total else 0
    signs = glyphs.chosen()
    return (
        Content.styled(f"{name:<6}", "$quiet")
        + Content.styled(signs.bar * full, "$accent")
        + Content.styled(signs.trough * (width - full), "$quiet")
        + Content.styled(text, "$secondary")
    )
