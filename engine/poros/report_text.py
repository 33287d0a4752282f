"""A run's report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from poros.report_charts import Chart, thinned
from poros.report_view import ROWS, View

MARK = "<!-- poros report -->"
"""How a report begins: only such a file is written over without being asked."""

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
_LEVELS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def markdown(view: View) -> str:
    """The whole file."""
    return "\n".join(_lines(view)) + "\n"


def escaped(text: str) -> str:
    """A text that stays one line and means no Markdown and no HTML."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return _SPECIAL.sub(r"\\\1", plain).strip()


def fenced(text: str) -> str:
    """A text as it is, in a fence that it can't close."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    shown = "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
    return f"{fence}text\n{shown}\n{fence}"


def sparkline(chart: Chart) -> str:
    """The chart's first line in one row of characters."""
    line = chart.drawn[0].points
    values = [value for _, value in thinned(line, _WIDTH) if value is not None]
    low, span = min(values), (max(values) - min(values)) or 1.0
    return "".join(_LEVELS[min(7, int(8 * (value - low) / span))] for value in values)


def _lines(view: View) -> Iterator[str]:
    yield MARK
    yield f"# {escaped(view.title)}: {view.state}"
    yield ""
    yield escaped(view.lead) + (f" {view.when}." if view.when else "")
    if view.notes:
        yield from ("", *(f"- {escaped(note)}" for note in view.notes))
    yield from _table("", [(t.name, " ".join((t.value, t.note)).strip()) for t in view.tiles])
    yield from _curves(view)
    yield from _memory(view)
    yield from _samples(view)
    for title, rows in view.tables:
        yield from _table(title, rows)
    if view.config:
        yield from ("", "## Config")
    for group, rows in view.config:
        yield from _table(group, rows, level=3)


def _curves(view: View) -> Iterator[str]:
    if view.charts:
        yield from ("", "## Curves", "", "| | first | last | lowest | highest | |")
        yield "|---|---|---|---|---|---|"
        yield from map(_chart_row, view.charts)


def _memory(view: View) -> Iterator[str]:
    if view.blocks_note:
        yield from ("", "## Memory", "", escaped(view.blocks_note))
    for place, bars in view.memory.items():
        yield from _table(f"On the {place}", [(bar.name, bar.told) for bar in bars], level=3)


def _samples(view: View) -> Iterator[str]:
    if view.samples:
        yield from ("", "## Samples")
    for prompt, answers in view.samples.items():
        yield from ("", fenced(prompt))
        for stage, text in answers:
            yield from ("", f"{escaped(stage)}:", "", fenced(text))


def _chart_row(chart: Chart) -> str:
    values = [value for _, value in chart.drawn[0].points if value is not None]
    told = map(chart.told, (values[0], values[-1], min(values), max(values)))
    return f"| {chart.title} | {' | '.join(told)} | {sparkline(chart)} |"


def _table(title: str, rows: ROWS | Sequence[tuple[str, str]], level: int = 2) -> Iterator[str]:
    if title:
        yield from ("", f"{'#' * level} {escaped(title)}")
    yield from ("", "| | |", "|---|---|")
    for name, value in rows:
        yield f"| {escaped(name)} | {escaped(value)} |"
