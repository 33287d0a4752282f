"""How a run ended, in words: what came of it, or what went wrong and what helps."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from poros_tui.engine.process import Ending
from poros_tui.engine.run_state import RunState
from poros_tui.engine.way_out import WayOut, way_out
from poros_tui.glyphs import Glyphs
from poros_tui.words import count, duration, safe, short_path, significant

IN_WORDS = {
    "E-device-memory": "The card ran out of memory",
    "E-host-memory": "The computer ran out of memory",
    "E-storage": "The disk is full, or it failed",
    "E-device-lost": "The card stopped answering",
    "E-non-finite": "The training went astray: a loss or a gradient is no number",
    "E-data": "Something is wrong with the training data",
    "E-model": "Something is wrong with the model's files",
    "E-architecture": "Poros does not know this family of models",
    "E-hub": "The Hub or the network said no",
    "E-config": "A setting is wrong",
    "E-output": "The run's folder can't be used",
    "E-resume": "The run can't go on from its checkpoint",
    "E-internal": "This is an error of Poros itself",
}
"""What an error's code means to somebody who doesn't know the words."""

QUIET, SECOND = "$quiet", "$secondary"


@dataclass(frozen=True, slots=True)
class Told:
    """An ending as the screen shows it.

    Attributes:
        text: The lines.
        kind: ``finished``, ``stopped`` or ``failed``: its colour.
        way_out: The change that helps; None: nothing went wrong.
    """

    text: Content
    kind: str
    way_out: WayOut | None = None


def told_ending(run: RunState, ending: Ending, width: int, glyphs: Glyphs) -> Told:
    """The lines for an ending."""
    if ending.status == "finished":
        return Told(_finished(run, width, glyphs), "finished")
    if ending.status == "stopped":
        return Told(_stopped(run, glyphs), "stopped", WayOut())
    return _failed(run, ending, width, glyphs)


def makes_sense(action: str, is_going: bool, told: Told | None) -> bool:
    """Whether an action of the Train screen can be done while a run goes on, or once it ended."""
    if action in ("order", "pause", "stop", "abort", "detach"):
        return is_going
    if action == "result":
        return told is not None and told.kind == "finished"
    if action == "resume":
        return told is not None and told.kind != "finished"
    if action == "apply":
        return told is not None and bool(told.way_out and told.way_out.settings)
    return True


def _key(key: str, does: str) -> Content:
    return Content.assemble((f" {key} ", "bold $accent"), (f"{does}   ", ""))


def _finished(run: RunState, width: int, glyphs: Glyphs) -> Content:
    finished, steps = run.finished, run.steps
    # Of a run that went on, the ending tells of the last start alone.
    some = f", those after step {run.first_step}," if run.first_step else ""
    took = f"{some} in {duration(finished.duration_s)}" if finished else ""
    lines = [
        Content.styled(f"{glyphs.ok} Trained: {count(run.step)} steps{took}.", "bold $success")
    ]
    facts = []
    if len(steps) > 1:
        first, last = float(steps["loss"][0]), steps.last("loss")
        facts.append(f"loss {significant(first)} {glyphs.arrow} {significant(last)}")
    if len(run.evals) > 1:
        first, last = run.evals[0].eval_loss, run.evals[-1].eval_loss
        facts.append(f"held out {significant(first)} {glyphs.arrow} {significant(last)}")
    elif run.evals:
        facts.append(f"held out {significant(run.evals[-1].eval_loss)}")
    if facts:
        lines.append(Content.styled("  " + f"   {glyphs.dot}   ".join(facts), SECOND))
    if finished is not None and finished.adapter_path:
        path = short_path(safe(finished.adapter_path), max(10, width - 26))
        lines.append(Content.styled(f"  The adapter lies in {path}", SECOND))
    lines.append(Content(" ") + _key("enter", "Try it, and see what it learned"))
    return Content("\n").join(lines)


def _stopped(run: RunState, glyphs: Glyphs) -> Content:
    saved = run.saved_step
    lines = [Content.styled(f"{glyphs.idle} Stopped after step {count(run.step)}.", "bold")]
    told = (
        f"  Saved: it goes on from step {count(saved)} whenever you like."
        if saved is not None
        else "  Nothing was saved before it stopped: it begins anew."
    )
    lines.append(Content.styled(told, SECOND))
    lines.append(Content(" ") + _key("r", "Begin anew" if saved is None else "Go on training"))
    return Content("\n").join(lines)


def _failed(run: RunState, ending: Ending, width: int, glyphs: Glyphs) -> Told:
    found = way_out(ending.remediation)
    told = ", ".join(filter(None, (safe(ending.message), safe(ending.where))))
    headline = IN_WORDS.get(ending.code, "")
    if not headline:
        headline, told = told[:1].upper() + told[1:], ""
    lines = [Content.styled(f"{glyphs.error} {headline}.", "bold $error").wrap(width)]
    if told:
        wrapped = Content.styled(told, QUIET).wrap(max(10, width - 2))
        lines.append([Content("  ") + line for line in wrapped])
    if ending.remediation:
        remedy = safe(ending.remediation[:1].upper() + ending.remediation[1:])
        wrapped = Content(f"{remedy}.").wrap(max(10, width - 10))
        label = Content.styled("  To mend: ", "$accent")
        lines.append([label + wrapped[0], *(Content(" " * 11) + more for more in wrapped[1:])])
    # Of one that was killed the remedy says so already; of one that is lost nobody knows.
    if ending.status not in ("killed", "lost") or run.saved_step is not None:
        lines.append([_saved_line(run)])
    lines.append([Content(" ") + _choices(found, run)])
    text = Content("\n").join(line for block in lines for line in block)
    return Told(text, "failed", found)


def _saved_line(run: RunState) -> Content:
    saved = run.saved_step
    if run.started is None:
        return Content.styled("  It had not begun yet: nothing is lost.", SECOND)
    if saved is None:
        return Content.styled("  No checkpoint was saved: it begins anew.", SECOND)
    again = run.step - saved
    told = f"  Saved up to step {count(saved)}"
    if again > 0:
        told += f"; {count(again)} {'step is' if again == 1 else 'steps are'} made again"
    told += "."
    return Content.styled(told, SECOND)


def restart_word(run: RunState) -> str:
    """What starting it again comes to."""
    return "Go on" if run.saved_step is not None else "Begin anew" if run.started else "Try again"


def _choices(found: WayOut, run: RunState) -> Content:
    again = restart_word(run)
    if not found.settings:
        change = _key("5", "Change it in Config") if run.started is None else Content("")
        return _key("r", again) + change
    if found.goes_on:
        return _key("a", f"Set {found.words}, and {again.lower()}") + _key("r", f"{again} as it is")
    return _key("a", f"Set {found.words} in a new run") + _key("r", f"{again} as it is")
