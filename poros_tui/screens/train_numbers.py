"""What the Train screen says in numbers: the run, its memory, the blocks, its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from textual.content import Content

from poros_tui.engine.commands import DeviceNow, LiveSample
from poros_tui.engine.followed import device_of
from poros_tui.engine.machine import Machine
from poros_tui.engine.run_log import phase_name
from poros_tui.engine.run_pace import Pace
from poros_tui.engine.run_state import Answer, RunState
from poros_tui.engine.smoothing import smoothed
from poros_tui.engine.step_table import Column
from poros_tui.glyphs import Glyphs
from poros_tui.widgets.strokes import aligned, progress, sparkline, stacked
from poros_tui.words import (
    clock,
    count,
    duration,
    gigabytes,
    learning_rate,
    of_gigabytes,
    safe,
    significant,
)

_LABEL, _VALUE = 15, 9
_MOST_SPARKS = 4_000
_WIDE = 50
QUIET, SECOND = "$quiet", "$secondary"


@dataclass(frozen=True, slots=True)
class Scene:
    """What a drawing needs to know beside the run.

    Attributes:
        now_s: Wall clock.
        glyphs: Of this terminal.
        pace: The run's.
        machine: The newest look at card, RAM and disk.
        live: What the run does at this moment; None: unknown.
        weight: Of the smoothing, as the curve has it.
        is_going: It makes steps: a time of day for its end makes sense.
    """

    now_s: float
    glyphs: Glyphs
    pace: Pace
    machine: Machine
    live: LiveSample | None
    weight: float
    is_going: bool


def run_lines(run: RunState, scene: Scene, width: int) -> Content:
    """The Run panel: how far, how long, then a row a number with its course."""
    step, total = run.step, run.total_steps
    share = step / total if total else 0.0
    head = Content.assemble(
        ("step ", QUIET), (count(step), "bold"), (f" of {count(total)}" if total else "", QUIET)
    )
    lines = [
        aligned(head, Content.styled(f"{share:.0%}", "bold $accent"), width),
        progress(share, width, scene.glyphs),
        aligned(_left(run, scene), _done_at(run, scene), width),
        Content(""),
    ]
    for label, value, spark, style in _rows(run, scene):
        room = width - _LABEL - _VALUE - 1
        course = sparkline(spark, room, scene.glyphs) if isinstance(spark, np.ndarray) else spark
        line = Content.assemble(
            (f"{label:<{_LABEL}}", QUIET), (f"{value:<{_VALUE}}", "bold"), " ", (course, style)
        )
        lines.append(line.truncate(width, ellipsis=True))
    return Content("\n").join(lines)


def short_run_lines(run: RunState, scene: Scene, width: int) -> Content:
    """The same in three lines, for small windows."""
    step, total = run.step, run.total_steps
    share = step / total if total else 0.0
    head = Content.assemble(
        ("step ", QUIET), (count(step), "bold"), (f" of {count(total)} ", QUIET),
        (f" {share:.0%}  ", "bold $accent"),
    )  # fmt: skip
    left = _left(run, scene) + Content.styled("  ", QUIET) + _done_at(run, scene)
    room = max(4, width - head.cell_length - left.cell_length - 2)
    first = head + progress(share, room, scene.glyphs) + Content("  ") + left
    facts = [(label, value) for label, value, *_ in _rows(run, scene)][:7]
    pieces = [
        Content.assemble((f"{label} ", QUIET), (value, "bold")) for label, value in facts if value
    ]
    rows: list[Content] = [first.truncate(width, ellipsis=True)]
    row = Content("")
    for piece in pieces:
        if row.cell_length and row.cell_length + 3 + piece.cell_length > width:
            rows.append(row)
            row = Content("")
        row = row + Content("   ") + piece if row.cell_length else piece
    return Content("\n").join([*rows, row])


Row = tuple[str, str, Column | str, str]


def _rows(run: RunState, scene: Scene) -> list[Row]:
    """Label, value, course (numbers or words) and its style."""
    steps, pace = run.steps, scene.pace
    rows: list[Row] = []
    if len(steps):
        curve = smoothed(steps.tail("loss", 2_000), scene.weight)
        mean = f"mean {significant(float(curve[-1]))}" if scene.weight else ""
        rows.append(("loss", significant(steps.last("loss")), mean, SECOND))
    if run.evals:
        latest, best = run.evals[-1], min(run.evals, key=lambda found: found.eval_loss)
        told = f"best {significant(best.eval_loss)}" if best is not latest else "best"
        told += f", step {count(best.step)}"
        if not latest.step:
            told = "before training"
        rows.append(("held out", significant(latest.eval_loss), told, SECOND))
    if len(steps):
        rows += [
            ("gradient norm", significant(steps.last("grad_norm"), 3),
             steps.tail("grad_norm", _MOST_SPARKS), "$accent 70%"),
            ("learning rate", learning_rate(steps.last("learning_rate")),
             steps["learning_rate"], "$accent 70%"),
        ]  # fmt: skip
    if pace.tokens_per_s is not None and pace.step_s is not None:
        speeds = steps.tail("num_tokens", 400) / steps.tail("duration_s", 400).clip(1e-9)
        rows.append(("tokens/s", count(pace.tokens_per_s), speeds, "$accent 70%"))
        rows.append(("a step", _seconds(pace.step_s), "", SECOND))
    if len(steps):
        rows.append(_saved_row(run))
        seen = steps.last("trained_tokens")
        rows.append(("trained on", _millions(seen), "tokens", SECOND))
        rows.append(("so far", duration(steps.last("trained_s")), "", SECOND))
    return rows


def _saved_row(run: RunState) -> Row:
    if run.saved_step is None:
        return "saved step", "none yet", "" if run.has_ended else "c saves", SECOND
    size = gigabytes(run.checkpoints[-1].size_bytes) if run.checkpoints else ""
    return "saved step", count(run.saved_step), size, SECOND


def _millions(number: float) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else count(number)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 100 else duration(seconds)


def _left(run: RunState, scene: Scene) -> Content:
    if run.phase is not None and run.num_steps_here:
        phase = run.phase
        part = f" {count(phase.done)} of {count(phase.total)} {phase.unit}" if phase.total else ""
        return Content.styled(f"{phase_name(phase.name).lower()}{part}", "$warning")
    if scene.pace.left_s is None or not scene.is_going:
        return Content("")
    return Content.assemble((duration(scene.pace.left_s), "bold"), (" left", QUIET))


def _done_at(run: RunState, scene: Scene) -> Content:
    if scene.pace.left_s is None or not scene.is_going or run.phase is not None:
        return Content("")
    if scene.pace.left_s > 20 * 3600:
        return Content("")
    return Content.styled(f"done about {clock(scene.now_s + scene.pace.left_s)}", QUIET)


def memory_lines(run: RunState, scene: Scene, width: int, *, short: bool = False) -> Content:
    """The Memory panel: the card with whose memory is whose, then RAM and disk."""
    lines = [*_card_lines(run, scene, width, short), *_host_lines(run, scene, width)]
    return Content("\n").join([lines[0], *lines[2:]] if short and len(lines) > 2 else lines)


def _card_lines(run: RunState, scene: Scene, width: int, short: bool) -> list[Content]:
    device = device_of(run, scene.live)
    if device is None:
        told = "no card: this run trains on the CPU" if run.is_on_cpu else "card  not told yet"
        return [Content.styled(told, QUIET)]
    ours = device.reserved
    others = device.others
    rest = device.used - ours if others is None else others
    used = Content.styled(f"  {of_gigabytes(device.used, device.total)}", "bold")
    if short and run.peak_bytes:
        used += Content.styled(f", peak {gigabytes(run.peak_bytes)}", QUIET)
    if not short and width >= _WIDE:
        used += Content.styled(_heat(device), QUIET)
    parts = [(ours / device.total, "$accent"), (max(0, rest) / device.total, "$foreground 45%")]
    bar = stacked(parts, max(4, width - 5 - used.cell_length), scene.glyphs)
    plan = run.plan
    sizes = {
        "run": ours,
        "others": others,
        "peak": run.peak_bytes or None,
        "plan": plan.peak_bytes or None if plan else None,
        "budget": plan.budget_bytes if plan else None,
    }
    words = [f"{name} {size / 1e9:.1f}" for name, size in sizes.items() if size is not None]
    if others is None:
        words.insert(1, "others unknown")
    while len(words) > 1 and len(" . ".join(words)) + 8 > width:
        words.pop()  # the last ones are told before the run, too
    legend = Content.styled(f"     {f' {scene.glyphs.dot} '.join(words)} GB", QUIET)
    return [Content.assemble(("card ", QUIET), bar, used), legend]


def _heat(device: DeviceNow) -> str:
    celsius = "" if device.celsius is None else f"  {device.celsius} °C"
    return celsius + ("" if device.watts is None else f"  {device.watts:.0f} W")


def _host_lines(run: RunState, scene: Scene, width: int) -> list[Content]:
    rss = scene.live.host_rss_bytes if scene.live is not None else run.host_rss_bytes
    machine, lines = scene.machine, list[Content]()
    if machine.ram_total_bytes and machine.ram_free_bytes is not None:
        free = Content.styled(f"  {gigabytes(machine.ram_free_bytes)} free", "bold")
        used = machine.ram_total_bytes - machine.ram_free_bytes
        parts = [
            (min(rss, used) / machine.ram_total_bytes, "$accent"),
            (max(0, used - rss) / machine.ram_total_bytes, "$foreground 45%"),
        ]
        bar = stacked(parts, max(4, width - 5 - free.cell_length), scene.glyphs)
        lines.append(Content.assemble(("RAM  ", QUIET), bar, free))
    elif rss:
        lines.append(Content.assemble(("RAM  ", QUIET), (f"this run {gigabytes(rss)}", SECOND)))
    if machine.disk_free_bytes is not None:
        told = f"{gigabytes(machine.disk_free_bytes)} free"
        size = run.checkpoints[-1].size_bytes if run.checkpoints else 0
        told += f", a checkpoint takes {gigabytes(size)}" if size else ""
        lines.append(Content.assemble(("disk ", QUIET), (told, SECOND)))
    return lines


def blocks_status(run: RunState, scene: Scene, width: int) -> Content:
    """Below the map: which way, which block, how the link does."""
    glyphs, live, plan = scene.glyphs, scene.live, run.plan
    num_blocks = plan.num_blocks if plan else (run.loaded.num_blocks if run.loaded else 0)
    pieces = list[Content]()
    if live is not None and live.computing is not None and live.direction:
        sign = glyphs.back if live.direction == "backward" else glyphs.forward
        # The longer word keeps the line from jumping.
        way = f"{live.direction:<8}"
        where = f" block {live.computing + 1:>{len(str(num_blocks))}} of {num_blocks}"
        pieces.append(Content.assemble((f"{sign} {way}", "bold $accent"), (where, "")))
    elif plan is not None:
        stay = f"{len(plan.resident)} of {num_blocks} blocks stay"
        travel = num_blocks - len(plan.resident)
        stay += f", {travel} stream through {plan.num_slots} slots" if travel else ""
        pieces.append(Content.styled(stay, SECOND))
    if scene.pace.link_bytes_per_s:
        rate = f"{gigabytes(scene.pace.link_bytes_per_s)}/s"
        what = "copies " if run.is_on_cpu else "link "
        pieces.append(Content.assemble((what, QUIET), (rate, "bold")))
    if scene.pace.waiting_share is not None:
        share = f"{scene.pace.waiting_share:.0%}"
        pieces.append(Content.assemble(("waits for copies ", QUIET), (share, "bold")))
    line = Content("    ").join(pieces)
    return line.truncate(width, ellipsis=True)


def blocks_legend(run: RunState, glyphs: Glyphs, width: int) -> Content:
    """What the signs of the map mean, as many as fit."""
    there = "in a slot" if run.is_on_cpu else "on the card"
    signs = (
        (glyphs.resident, "$accent 55%", "stays"),
        (glyphs.arriving, "$warning", "arriving"),
        (glyphs.arrived, "$accent", there),
        (glyphs.computing, "bold", "computing"),
        (glyphs.waiting, "$foreground 30%", "waiting" if run.is_on_cpu else "waiting in RAM"),
    )
    line = Content("")
    for sign, style, told in signs:
        piece = Content.assemble((sign, style), (f" {told}   ", QUIET))
        if line.cell_length + piece.cell_length - 3 <= width:
            line += piece
    return line.rstrip()


def answer_lines(answers: Sequence[Answer], index: int, width: int, height: int) -> Content:
    """The "Heard just now" panel: one prompt, what the model says now, what it said before."""
    if width < 1:
        return Content("")
    if not answers:
        told = "Set samples in the config, and the model answers them here as it learns."
        return Content.styled(told, QUIET)
    answer = answers[index % len(answers)]
    lines = [Content.styled(safe(answer.prompt), SECOND).truncate(width, ellipsis=True)]
    now = safe(answer.now or answer.before)
    before = safe(answer.before) if answer.now and answer.before else ""
    room = max(1, height - 1 - (1 if before else 0))
    wrapped = Content.styled(f"\u201c{now}\u201d", "bold").wrap(width)
    shown = wrapped[:room]
    if len(wrapped) > room:
        shown[-1] = (shown[-1] + Content(" " * width)).truncate(width, ellipsis=True)
    lines += shown
    if before:
        was = Content.styled(f"before: {before}", QUIET)
        lines.append(was.truncate(width, ellipsis=True))
    return Content("\n").join(lines)


def all_answers(run: RunState, width: int) -> Content:
    """Every prompt with its answers, for the page that shows only them."""
    if not run.answers:
        return answer_lines((), 0, width, 3)
    parts = list[Content]()
    for answer in run.answers.values():
        parts.append(Content.styled(safe(answer.prompt), "bold $accent"))
        if answer.before:
            parts.append(Content.styled(f"before  {safe(answer.before)}", QUIET))
        if answer.now:
            parts.append(Content.assemble(("now     ", QUIET), safe(answer.now)))
        parts.append(Content(""))
    return Content("\n").join(parts)
