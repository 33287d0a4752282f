"""What the Result screen says: pure text from an outcome."""

from __future__ import annotations

from pathlib import Path

from textual.content import Content

from poros_tui import glyphs, words
from poros_tui.screens.result_facts import Asked, Outcome
from poros_tui.screens.result_jobs import Told

_KINDS = {"finished": "ok", "running": "busy", "stopped": "warn", "failed": "error"}
_COLOURS = {"ok": "$success", "busy": "$accent", "warn": "$warning", "error": "$error"}
_LOWER = "A lower loss is better"
_HELD_OUT = "; the held-out one is of rows that were not trained on"
NOTHING = "No run is chosen yet. Train first, or choose one on 8 Runs."


def overview(found: Outcome | None, folder: Path | None, width: int) -> Content:
    """How the run went."""
    if folder is None:
        return Content.styled(NOTHING, "$secondary")
    if found is None:
        return Content.styled("reading the run ...", "$secondary")
    if found.error:
        return _verdict("error", found.error)
    kind = _KINDS.get(found.state, "error")
    lines = [
        Content.styled(found.title, "bold"),
        _verdict(kind, found.lead),
        Content.styled(found.when, "$secondary"),
        Content(""),
    ]
    name_width = max((len(name) for name, _, _ in found.tiles), default=0)
    value_width = max((len(value) for _, value, _ in found.tiles), default=0)
    for name, value, note in found.tiles:
        room = max(0, width - name_width - value_width - 4)
        line = ((f"{name:<{name_width}}  ", "$secondary"), f"{value:>{value_width}}  ")
        lines.append(Content.assemble(*line, (_cut(note, room), "$secondary")))
    if found.state == "finished":
        held_out = _HELD_OUT if any(name == "held-out loss" for name, _, _ in found.tiles) else ""
        lines += [Content(""), Content.styled(f"{_LOWER}{held_out}.", "$secondary")]
    signs = glyphs.chosen()
    lines += [
        Content.assemble((f"{signs.warn} ", "$warning"), (note, "$secondary"))
        for note in found.notes
    ]
    return Content("\n").join(lines)


def sample(found: Outcome | None, index: int) -> Content:
    """A prompt with its answers, before and after."""
    if found is None or not found.asked:
        told = "This run asked no samples. `samples` in Config, group Run, asks some."
        return Content.styled(told if found is not None else "", "$secondary")
    each = found.asked[index % len(found.asked)]
    signs = glyphs.chosen()
    is_open = found.state != "finished" and not each.after
    count = f"{index % len(found.asked) + 1} of {len(found.asked)}   "
    lines = [
        Content.assemble((count, "$secondary"), (f"{signs.previous} {signs.next}", "$accent")),
        Content.styled(words.safe(each.prompt), "bold"),
        Content(""),
        _answer("before", each.before, "$secondary"),
        Content(""),
        _answer("after", each.after, "$foreground", "(not yet)" if is_open else "(nothing)"),
    ]
    if is_same(each):
        lines += [Content(""), Content.styled("Both are the same.", "$secondary")]
    return Content("\n").join(lines)


def is_same(each: Asked) -> bool:
    """The training changed nothing of this answer."""
    return bool(each.before) and each.before == each.after


def use(
    found: Outcome | None, export: Told | None, report: Told | None, width: int = 76
) -> Content:
    """Where the adapter lies, how to load it, what was made of it."""
    if found is None or found.adapter is None:
        return Content.styled("There is no adapter yet.", "$secondary")
    size = words.gigabytes(found.adapter_bytes)
    what = "adapter" if found.is_final else "last checkpoint"
    lines = [
        Content.assemble(
            (f"{what}  ", "$secondary"),
            words.short_path(found.adapter),
            (f"  {size}", "$secondary"),
        ),
    ]
    if found.load_lines:
        lines.append(
            Content.assemble(
                ("load it in Python  ", "$secondary"), ("y", "$accent"), " copies this"
            )
        )
        lines += [Content(f"  {_cut(line, width - 2)}") for line in found.load_lines]
    for name, key, told in (("export", "e", export), ("report", "h", report)):
        if told is None:
            todo = {"export": "an ordinary model folder", "report": "one HTML file"}[name]
            lines.append(
                Content.assemble(
                    (f"{name}  ", "$secondary"), (f"{key}", "$accent"), f" makes {todo}"
                )
            )
        else:
            lines.append(
                Content.assemble((f"{name}  ", "$secondary")) + _verdict(told.kind, told.text)
            )
    return Content("\n").join(lines)


def _cut(line: str, room: int) -> str:
    return line if len(line) <= room else line[: max(room - 1, 0)] + glyphs.chosen().dots


def _answer(when: str, text: str, colour: str, nothing: str = "(nothing)") -> Content:
    shown = "\n".join(words.safe(line) for line in text.strip().split("\n")) or nothing
    return Content.assemble((f"{when}  ", "$accent"), (shown, colour))


def _verdict(kind: str, told: str) -> Content:
    sign, colour = getattr(glyphs.chosen(), kind), _COLOURS[kind]
    return Content.assemble((f"{sign} ", f"bold {colour}"), (told, colour))
