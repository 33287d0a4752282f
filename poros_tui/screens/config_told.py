"""What the wizard says beside the form: costs, the focused setting, problems, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from poros.config import PorosConfig
from poros_tui import glyphs, words
from poros_tui.screens.config_cost import Computer, Cost
from poros_tui.screens.config_draft import Lengths
from poros_tui.screens.config_form import FieldForm, Form, Problem, fields
from poros_tui.screens.config_wizard import ASKED
from poros_tui.widgets.confirm import Answer, ConfirmDialog

_BAR = 10
_ANY_TEXT = "non-empty text"


@dataclass(frozen=True)
class Verdict:
    """Whether it can start, and why in a sentence.

    Attributes:
        kind: ``ok``, ``warn``, ``error``, or ``busy`` while that is looked at.
        told: In a sentence without a full stop.
        way_out: What helps, in sentences; empty: nothing needs mending, or it is told elsewhere.
    """

    kind: str
    told: str
    way_out: str = ""

    def content(self) -> Content:
        """With its sign and colour."""
        sign = getattr(glyphs.chosen(), self.kind)
        colour = {"ok": "$success", "warn": "$warning", "error": "$error",
                  "busy": "$accent"}[self.kind]  # fmt: skip
        return Content.assemble((f"{sign} ", f"bold {colour}"), (self.told, colour))


STARTING = Verdict("busy", "the run is being started")


def verdict(
    found: Cost, problems: Sequence[Problem], computer: Computer, why_not: str, unchecked: str = ""
) -> Verdict:
    """The state of what is entered.

    Args:
        found: What it takes.
        problems: What is wrong.
        computer: Where it would run.
        why_not: What was found wrong with model or data; empty: nothing.
        unchecked: ``model`` or ``data`` while it is looked at; empty: nothing is.
    """
    if problems:
        count = len(problems)
        return Verdict("error", f"{count} thing{'s' * (count > 1)} to mend before it can start")
    if why_not:
        return Verdict("error", why_not)
    if unchecked:
        return Verdict("busy", f"not checked yet: the {unchecked} is being looked at")
    if doubtful := _doubtful(found, computer):
        return doubtful
    if found.device_bytes is not None:
        return Verdict("ok", "ready, and it fits")
    if found.host_bytes is not None and not computer.card:
        return Verdict("ok", "ready; without a card it trains on the CPU, slowly")
    return Verdict("ok", "ready")


def _doubtful(found: Cost, computer: Computer) -> Verdict | None:
    if found.refusal:
        way_out = " ".join(filter(None, (found.refusal, found.way_out)))
        return Verdict("warn", "this is not expected to fit on the card", way_out)
    if found.host_bytes and computer.host_bytes and found.host_bytes > computer.host_bytes:
        return _short_of_memory(found.host_bytes, computer)
    if found.disk_bytes and computer.disk_bytes and found.disk_bytes > computer.disk_bytes:
        needed, free = words.gigabytes(found.disk_bytes), words.gigabytes(computer.disk_bytes)
        way_out = (
            f"They take {needed}, {free} are free: make room, lower keep_checkpoints, or name a"
            " folder on another disk in 5 Where to."
        )
        return Verdict("warn", "the disk has too little room for the checkpoints", way_out)
    return None


def _short_of_memory(needed_bytes: int, computer: Computer) -> Verdict:
    needed, free = words.gigabytes(needed_bytes), words.gigabytes(computer.host_bytes)
    told = f"this may need more memory than is free: {needed} of RAM, {free} are free"
    way_out = "Close other programs"
    if computer.card:
        way_out += ", set host_tier: disk (the model waits on the disk, which is slower)"
    return Verdict("warn", told, f"{way_out}, or take a smaller model.")


def doubt(told: Verdict) -> ConfirmDialog:
    """Asks whether to start though it is not sure to go well."""
    is_checked = told.kind != "busy"
    why = "estimates can be wrong; it says so if it does not fit"
    answers = [
        Answer("", "Back", "change something first" if is_checked else "wait for the check",
               key="b"),
        Answer("start", "Start all the same", why if is_checked else "if something is wrong, the"
               " run ends before its first step and says so", key="s", loses=True),
    ]  # fmt: skip
    question = f"{told.told[0].upper()}{told.told[1:]}. Start all the same?"
    return ConfirmDialog(question, answers, told.way_out)


def cut_told(lengths: Lengths | None, config: PorosConfig | None) -> str:
    """How many samples are longer than they may be; empty: none, or it is not known."""
    if lengths is None or config is None:
        return ""
    most = config.max_seq_length
    number, total = lengths.num_over(most), len(lengths.below) + len(lengths.above)
    what = {"drop": "left out", "error": "too long"}.get(config.overlong, "cut")
    return f"{what} {number:,} of {total:,} samples" if number else ""


def uncounted(lengths: Lengths | None, data: str) -> str:
    """What tells how many samples are longer than they may be; empty: it is known, or no data."""
    return "4 Data counts what is cut" if data and lengths is None else ""


def cost_told(found: Cost, computer: Computer, cut: str, uncounted: str, room: int) -> Content:
    """What it takes: a line each, or in as few lines of ``room`` columns as it takes."""
    if room:
        return cost_line(found, computer, cut, room)
    return cost_lines(found, computer, cut, uncounted)


def cost_lines(found: Cost, computer: Computer, cut: str = "", uncounted: str = "") -> Content:
    """A line for each of card, RAM, disk and time, and for samples that are cut."""
    lines = []
    if found.device_bytes is not None:
        lines.append(_line("Card", _bar(found.device_bytes, computer.total_bytes)))
        lines.append(_more(_plan(found)))
    elif not computer.card:
        lines.append(_line("Card", Content("none: it trains on the CPU")))
    if found.host_bytes is not None:
        lines.append(_line("RAM", _bar(found.host_bytes, computer.host_bytes, free=True)))
    if found.disk_bytes is not None:
        told = f"{words.gigabytes(found.disk_bytes)} for checkpoints"
        lines.append(_line("Disk", Content(told)))
    if cut:
        lines.append(_line("Data", Content.styled(cut, "$warning")))
    elif uncounted:
        lines.append(_line("Data", Content.styled(uncounted, "$quiet")))
    lines.append(_line("Steps", Content(_steps(found))))
    lines.append(_line("Time", Content(_time(found, computer))))
    return Content("\n").join(lines)


def cost_line(found: Cost, computer: Computer, cut: str = "", room: int = 76) -> Content:
    """The same on a line or two, for small windows; what is uncounted is told with the data."""
    parts = []
    if found.device_bytes is not None:
        total = computer.total_bytes
        parts.append(("card", words.of_gigabytes(found.device_bytes, total)))
    elif not computer.card:
        parts.append(("card", "none"))
    if found.host_bytes is not None:
        parts.append(("RAM", words.gigabytes(found.host_bytes)))
    if found.num_steps is not None:
        parts.append(("steps", f"{found.num_steps:,}"))
    if found.total_band_s is not None:
        parts.append(("time", _time(found, computer)))
    if cut:
        parts.append(("data", cut))
    told = [Content.assemble((f"{name} ", "$secondary"), value) for name, value in parts]
    return _lines(told, room)


def _lines(parts: Sequence[Content], room: int) -> Content:
    """No name stands without its value: a part that has no room begins a line."""
    lines = list(parts[:1])
    for part in parts[1:]:
        if lines[-1].cell_length + 3 + part.cell_length > room:
            lines.append(part)
        else:
            lines[-1] += Content("   ") + part
    return Content("\n").join(lines)


def about(each: FieldForm | None, effect: str, told: str = "", *, narrow: bool = False) -> Content:
    """The setting that has the keyboard: its sentence, what it takes, what a change would do."""
    if each is None:
        return Content(told)
    lines = [Content(each.description)]
    if not narrow:
        lines.insert(0, Content.styled(each.title, "bold"))
    if each.takes != _ANY_TEXT:
        lines.append(Content.styled(f"Takes {each.takes}.", "$secondary"))
    if effect:
        value, colon, rest = effect.partition(": ")
        change = Content.assemble((f"{value}{colon}", "bold"), rest) if colon else Content(effect)
        lines.append(Content.assemble(("If ", "$secondary"), change) if colon else change)
    return Content("\n").join(lines)


def problem_lines(problems: Sequence[Problem], key: str) -> Content:
    """Each problem with its way out; those with a change say which key makes it."""
    signs = glyphs.chosen()
    lines = []
    is_first = True
    for problem in problems:
        lines.append(Content.assemble((f"{signs.error} ", "bold $error"), problem.message))
        if problem.change:
            change = ", ".join(
                f"{name}: {text or 'empty'}" for name, text in problem.change.items()
            )
            press = f"   {key}" if is_first else ""
            is_first = False
            is_place = problem.keys == ("output_dir",) and problem.way_out
            other = f"{problem.way_out} " if is_place else ""
            told = f"  {signs.arrow} {other}set {change}"
            parts = (told, "$secondary"), (press, "bold $accent")
            lines.append(Content.assemble(*parts))
        elif problem.way_out:
            lines.append(Content.styled(f"  {signs.arrow} {problem.way_out}", "$secondary"))
    return Content("\n").join(lines)


_GROUPS = {
    "model": "How the model is stored and computed.",
    "streaming": "How blocks of the model travel between RAM and card.",
    "adapter": "What is trained: how large it is, and where in the model it sits.",
    "optimizer": "How fast the adapter learns.",
    "training": "How long it trains, and on how much at a time.",
    "data": "How rows become samples, and which are tested on.",
    "run": "What is saved, measured and shown while it trains.",
}


def group_told(group: str) -> str:
    """Of a folded section."""
    return f"{_GROUPS.get(group, '')} Enter opens and folds it.".strip()


def _line(name: str, value: Content) -> Content:
    return Content.assemble((f"{name:<6}", "$secondary"), value)


def _more(told: str) -> Content:
    return Content.styled(f"{'':6}{told}", "$secondary")


def _bar(part: int, whole: int, *, free: bool = False) -> Content:
    """``free``: the whole is what is free, not what there is."""
    signs = glyphs.chosen()
    if not whole:
        return Content(words.gigabytes(part))
    filled = min(_BAR, max(1, round(_BAR * part / whole)))
    colour = "$warning" if part > whole else "$accent"
    bar = Content.assemble(
        (signs.bar * filled, colour), (signs.trough * (_BAR - filled), "$secondary")
    )
    if free:
        return bar + Content(f" {words.gigabytes(part)}, {words.gigabytes(whole)} free")
    return bar + Content(f" {words.of_gigabytes(part, whole)}")


def _plan(found: Cost) -> str:
    if found.plan is None:
        return ""
    if found.refusal:
        return "not even the smallest plan fits"
    stay = len(found.plan.plan.resident)
    return f"{stay} block{'s' * (stay != 1)} stay{'s' * (stay == 1)}, the rest streams"


def _rough(seconds: float) -> str:
    """A time that is only estimated, in one unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 86400 else f"{seconds / 86400:.1f} days"


def meaning(form: Form, room: int) -> Content:
    """The settings that differ from the defaults, a line each; a value has ``room`` columns."""
    told = [
        Content.assemble(
            (f"{fields()[key].title:<28}", "$secondary"), words.shortened(text or "empty", room)
        )
        for key, text in form.texts.items()
        if key not in ASKED
    ]
    return Content("\n").join(told) if told else Content("nothing but the defaults")


def _steps(found: Cost) -> str:
    if found.num_steps is None:
        return "unknown until the data is read"
    saved = ""
    if found.save_steps:
        at_end = found.save_steps >= found.num_steps
        saved = ", saved at the end only" if at_end else f", saved every {found.save_steps:,}"
    return f"{found.num_steps:,}{saved}"


def _time(found: Cost, computer: Computer) -> str:
    band = found.total_band_s
    if band is not None:
        low, high = band
        return f"{_rough(low)} to {_rough(high)}"
    if computer.card and computer.rates is None:
        return "unknown until Doctor measures it"
    return "told after the first three steps"
