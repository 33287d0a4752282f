"""Before the first step: what a start consists of, each part with its own progress."""

from __future__ import annotations

from textual.content import Content

from poros_tui.engine.run_log import phase_name
from poros_tui.engine.run_pace import phase_left_s
from poros_tui.engine.run_state import Phase, RunState
from poros_tui.glyphs import Glyphs
from poros_tui.widgets.strokes import progress
from poros_tui.words import count, duration, gigabytes

EXPECTED = ("start", "inputs", "hash", "device", "load", "plan", "attach", "read")
"""The parts that every start has; what is quicker may be missing, others may come between."""
_INSIDE = ("download", "tokenise")
_BAR, _SHORT_BAR = 24, 14
QUIET = "$quiet"


def start_lines(
    run: RunState, now_s: float, waited_s: float, width: int, glyphs: Glyphs
) -> Content:
    """A line a part: done, going on, to come.

    Args:
        run: What it told so far.
        now_s: Wall clock.
        waited_s: Since it is shown; said while the engine has told nothing yet.
        width: Columns.
        glyphs: Of this terminal.
    """
    phases = {phase.name: phase for phase in run.start_phases}
    lines = [
        _line(phase, phase is run.phase or phase.duration_s is None, now_s, width, glyphs)
        for phase in run.start_phases
    ]
    lines += [_to_come(name, glyphs) for name in _missing(phases)]
    if run.start_phases:
        lines.append(_to_come("train", glyphs))
    else:
        waited = f"  {duration(waited_s)}" if waited_s >= 1 else ""
        head = Content.styled(f"{glyphs.busy} The engine starts", "bold $accent")
        lines = [head + Content.styled(waited, QUIET)]
        lines.append(Content.styled("  Its libraries are read first, some ten seconds.", QUIET))
    return Content("\n").join(line.truncate(width, ellipsis=True) for line in lines)


def _missing(phases: dict[str, Phase]) -> list[str]:
    """Expected parts after the last one that was seen."""
    seen = {"load" if name == "quantise" else name for name in phases}
    last = max((EXPECTED.index(name) for name in seen if name in EXPECTED), default=-1)
    return [name for name in EXPECTED[last + 1 :] if name not in seen] if phases else []


def _line(phase: Phase, is_open: bool, now_s: float, width: int, glyphs: Glyphs) -> Content:
    indent = "  " if phase.name in _INSIDE else ""
    room = 29
    name = f"{indent}{phase_name(phase.name)}"
    if not is_open:
        took = duration(phase.duration_s or 0.0) if (phase.duration_s or 0) >= 0.95 else ""
        return Content.assemble(
            (f"{glyphs.ok} ", "$success"), (f"{name:<{room}}", ""), (took, QUIET)
        )
    head = Content.assemble((f"{glyphs.busy} ", "$accent"), (f"{name:<{room}}", "bold"))
    passed_s = max(0.0, now_s - phase.began_s)
    if not phase.total:
        return head + Content.styled(duration(passed_s) if passed_s >= 1 else "", QUIET)
    left_s = phase_left_s(phase, now_s)
    told = f"  {_amount(phase)}"
    told += f", {duration(left_s)} left" if left_s is not None and left_s >= 1 else ""
    share = phase.done / phase.total
    bar = _BAR if width >= 90 else _SHORT_BAR
    return head + progress(share, bar, glyphs) + Content.styled(told, QUIET)


def _amount(phase: Phase) -> str:
    if phase.unit == "bytes":
        return f"{gigabytes(phase.done)} of {gigabytes(phase.total)}"
    return f"{count(phase.done)} of {count(phase.total)} {phase.unit}"


def _to_come(name: str, glyphs: Glyphs) -> Content:
    return Content.styled(f"{glyphs.idle} {phase_name(name)}", "$foreground 40%")
