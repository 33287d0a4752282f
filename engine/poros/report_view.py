"""What a run's report says, before it has a form: sentences, tables and charts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poros import runs
from poros.home_paths import with_tilde
from poros.report_charts import Chart, Line, by_step, smoothed
from poros.report_facts import Facts, number
from poros.run_end import duration
from poros.told_sizes import told_size

ROWS = Sequence[tuple[str, str]]

_NOT_EXACT = (
    "The run was continued under changed conditions: it is no longer bit for bit the run"
    " that was begun."
)

_PHASES = {
    "start": "imports", "inputs": "inputs (download and tokenise within)",
    "hash": "hash of the model", "device": "start of the device", "load": "load",
    "read": "rest of the blocks' bytes", "quantise": "quantise", "plan": "plan",
    "attach": "attach", "train": "train",
    "evaluate": "evaluate", "sample": "samples", "save": "save",
}  # fmt: skip


@dataclass(frozen=True)
class Tile:
    """One figure at the top."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Bar:
    """A group of the memory map; ``part`` of the largest, 0 to 1."""

    name: str
    told: str
    part: float


@dataclass
class View:
    """What a report says.

    Attributes:
        title: The model's and the data's names.
        state: One word.
        lead: The sentence below it.
        notes: What a reader must know: gaps, failures, changed conditions.
        charts: Those that have something to draw.
        samples: By prompt, each answer with its stage.
        memory: Bars by place.
        tables: Titled rows.
    """

    title: str
    folder: str
    state: str
    lead: str
    when: str
    tiles: list[Tile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    samples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    memory: dict[str, list[Bar]] = field(default_factory=dict)
    blocks: list[bool] = field(default_factory=list)
    blocks_note: str = ""
    tables: list[tuple[str, ROWS]] = field(default_factory=list)
    config: list[tuple[str, ROWS]] = field(default_factory=list)


def view_of(facts: Facts) -> View:
    """Put a run's facts into words."""
    model, data = (str(facts.identity.get(key) or "?") for key in ("model", "dataset"))
    view = View(
        title=f"{_short(model)} on {_short(data)}",
        folder=with_tilde(str(facts.known.path)),
        state=facts.state,
        lead=with_tilde(lead(facts)),
        when=_when(facts.story.started_s, facts.story.last_s),
        tiles=_tiles(facts),
        notes=[with_tilde(note) for note in notes(facts)],
        charts=[chart for chart in _charts(facts) if chart.values],
        samples=_samples(facts),
        memory={place: _bars(groups) for place, groups in facts.memory.items() if groups},
        tables=[(title, _shared(rows)) for title, rows in _tables(facts, model, data) if rows],
        config=[
            (group, _shared([(key, _setting(value)) for key, value in values.items()]))
            for group, values in facts.groups.items()
        ],
    )
    _add_blocks(view, facts.records.get("plan_made", {}))
    return view


def lead(facts: Facts) -> str:
    """How the run stands, in one sentence."""
    story = facts.story
    at = f"step {story.step} of {story.total_steps}" if story.total_steps else "its start"
    if facts.state in runs.GOING_ON:
        return f"The run is at work; this is what it had told by {at}."
    if facts.state == runs.KILLED:
        last = max(facts.checkpoints, default=0)
        saved = f"the last checkpoint is of step {last}" if last else "no checkpoint was saved"
        return f"The run ended without a word (killed, or the machine went down) at {at}; {saved}."
    if facts.state == "failed":
        return f"The run failed at {at}: {story.message}"
    if facts.state == "stopped":
        return f"The run was stopped at {at}; the same command goes on from there."
    return f"The run finished all {story.total_steps} steps."


def notes(facts: Facts) -> list[str]:
    """What a reader must not overlook."""
    found = []
    if not facts.exact:
        found.append(_NOT_EXACT)
    if facts.bad_lines:
        found.append(_left_out(facts.bad_lines))
    if facts.known.moved_from:
        found.append(f"The folder was moved; the run was started in {facts.known.moved_from}.")
    if not facts.steps:
        found.append("No step was finished: there are no curves.")
    lost = [step for step, row in facts.steps.items() if row["loss"] is None]
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        found.append(f"The loss was not a finite number at step {min(lost)}{more}.")
    found += [f"No checkpoint of step {s}: {reason}" for s, reason in facts.failed_checkpoints]
    found += map(_shrunk, facts.shrinks)
    if not facts.groups:
        found.append("config.yaml is missing or can't be read.")
    return found


def _left_out(lines: Sequence[int]) -> str:
    shown = ", ".join(map(str, lines[:5])) + (", ..." if len(lines) > 5 else "")
    if len(lines) == 1:
        return f"1 line of events.jsonl can't be read and was left out (line {shown})."
    return f"{len(lines)} lines of events.jsonl can't be read and were left out (lines {shown})."


def _shrunk(record: Mapping[str, Any]) -> str:
    where = f"step {record.get('step')} ({record.get('phase')})"
    return (
        f"Device memory ran out at {where}; then {record.get('change')},"
        " and the work was done again with the same bits."
    )


def _tiles(facts: Facts) -> list[Tile]:
    story = facts.story
    losses = [row["loss"] for row in facts.steps.values() if row["loss"] is not None]
    evals = [value for value in facts.evals.values() if value is not None]
    tiles = []
    if losses:
        tiles.append(Tile("loss", f"{losses[-1]:.4f}", f"from {losses[0]:.4f}"))
    if evals:
        before = f"from {evals[0]:.4f}" if len(evals) > 1 else ""
        tiles.append(Tile("held-out loss", f"{evals[-1]:.4f}", before))
    tiles.append(Tile("steps", f"{story.step:,}", f"of {story.total_steps:,}"))
    if facts.steps:
        busy = _total(facts, "duration_s")
        tokens = _total(facts, "num_tokens")
        tiles.append(Tile("time in steps", duration(busy), _a_step(busy, len(facts.steps))))
        tiles.append(
            Tile("tokens", f"{tokens:,.0f}", f"{tokens / busy:,.0f} a second" if busy else "")
        )
        tiles.append(_stall_tile(facts, busy))
    peak = _highest(facts, "device_peak_bytes")
    if peak:
        reserved = _highest(facts, "device_reserved_bytes")
        tiles.append(Tile("device peak", told_size(peak), f"{told_size(reserved)} reserved"))
    host = _highest(facts, "host_rss_bytes")
    if host:
        tiles.append(Tile("host memory", told_size(host), "the process, at most"))
    return tiles


def _stall_tile(facts: Facts, busy: float) -> Tile:
    waited = _total(facts, "copy_wait_s")
    copied = _total(facts, "copied_bytes") / len(facts.steps)
    part = f"{100 * waited / busy:.1f} %" if busy else "-"
    return Tile("waiting for copies", part, f"{told_size(copied)} copied a step")


def _charts(facts: Facts) -> list[Chart]:
    steps = facts.steps
    losses = by_step(steps, "loss")
    width = max(2, len(losses) // 60)
    evals = sorted(facts.evals.items())
    loss_lines = [Line(name="each step", points=losses, look="raw")]
    loss_lines.append(Line(name="smoothed", points=smoothed(losses, width=width)))
    loss_lines.append(Line(name="held out", points=evals, look="b", dots=True))
    clip = number(facts.groups.get("optimizer", {}).get("max_grad_norm"))
    norms = by_step(steps, "grad_norm")
    norm_lines = [Line(name="norm", points=norms)]
    if len(norms) > 100:
        smooth = Line(name="smoothed", points=smoothed(norms, width=width))
        norm_lines = [Line(name="each step", points=norms, look="raw"), smooth]
    top = max((v for _, v in norms if v is not None), default=0.0)
    # A limit far above all norms would only press the curve flat.
    guide = ("clipped above", clip) if clip and clip <= 3 * top else None
    budget = number(facts.records.get("plan_made", {}).get("budget_bytes"))
    peaks = by_step(steps, "device_peak_bytes")
    on_device = any(v for _, v in peaks)
    device_lines = [
        Line(name="allocated, peak", points=peaks),
        Line(name="reserved", points=by_step(steps, "device_reserved_bytes"), look="c"),
    ]
    return [
        Chart(title="Loss", lines=loss_lines, told=brief),
        Chart(title="Learning rate", told=lambda v: f"{v:.3g}", from_zero=True, lines=[
            Line(name="rate", points=by_step(steps, "learning_rate"))]),
        Chart(title="Gradient norm", lines=norm_lines, told=brief, guide=guide, from_zero=True),
        Chart(title="Seconds a step", from_zero=True, told=lambda v: f"{v:.3g}", lines=[
            Line(name="whole step", points=by_step(steps, "duration_s")),
            Line(name="waiting for copies", points=by_step(steps, "copy_wait_s"), look="b")]),
        Chart(title="Device memory", lines=device_lines if on_device else [], told=told_size,
              guide=("budget", budget) if budget else None, from_zero=True),
        Chart(title="Host memory", from_zero=True, told=told_size, lines=[
            Line(name="resident set", points=by_step(steps, "host_rss_bytes"), look="c")]),
    ]  # fmt: skip


def _samples(facts: Facts) -> dict[str, list[tuple[str, str]]]:
    by_prompt: dict[str, list[tuple[str, str]]] = {}
    for sample in facts.samples:
        stage = f"step {sample.step}" if sample.stage == "during" else sample.stage
        by_prompt.setdefault(sample.prompt, []).append((stage, sample.text))
    return by_prompt


def _bars(groups: Mapping[str, int]) -> list[Bar]:
    ordered = sorted(groups.items(), key=lambda group: -group[1])
    largest = ordered[0][1]
    bars = [Bar(name, told_size(n), n / largest) for name, n in ordered[:12]]
    rest = [n for _, n in ordered[12:]]
    if rest:
        bars.append(Bar(f"{len(rest)} smaller groups", told_size(sum(rest)), sum(rest) / largest))
    return [*bars, Bar("together", told_size(sum(groups.values())), 0.0)]


def _add_blocks(view: View, plan: Mapping[str, Any]) -> None:
    num_blocks = number(plan.get("num_blocks"))
    resident = plan.get("resident")
    if not num_blocks or num_blocks > 1000 or not isinstance(resident, list):
        return
    stay = {index for index in resident if isinstance(index, int)}
    view.blocks = [index in stay for index in range(int(num_blocks))]
    slots = plan.get("num_slots")
    view.blocks_note = f"{sum(view.blocks)} of {len(view.blocks)} blocks stay on the device"
    view.blocks_note += f", the others pass through {slots} slots" if slots else ""


def _tables(facts: Facts, model: str, data: str) -> list[tuple[str, ROWS]]:
    story, end = facts.story, facts.records.get("run_finished", {})
    return [
        ("Run", [
            row for row in (
                ("model", model), ("data", data), ("folder", str(facts.known.path)),
                ("run", facts.known.run_id), ("adapter", str(end.get("adapter_path") or "")),
                ("checkpoints", ", ".join(map(str, facts.checkpoints[-12:]))),
                ("resumed", f"{story.num_resumes} times" if story.num_resumes else ""),
            ) if row[1]
        ]),
        ("Data", [(split, _data(record)) for split, record in facts.data.items()]),
        ("Where the time went", [
            (_PHASES.get(phase, phase), f"{seconds:.1f} s")
            for phase, seconds in facts.phases.items() if seconds >= 0.05
        ]),
        ("Plan", _plan(facts)),
        ("Warnings", list(dict.fromkeys(facts.warnings))),
        ("Environment", [("device", story.device), *sorted(story.versions.items())]
            if story.versions else []),
    ]  # fmt: skip


def _plan(facts: Facts) -> ROWS:
    made, found = (facts.records.get(name, {}) for name in ("plan_made", "plan_measured"))
    loaded = facts.records.get("model_loaded", {})
    on_host = made.get("on_host")
    rows = [
        ("on the host", ", ".join(map(str, on_host)) if isinstance(on_host, list) else ""),
        ("blocks on the host", _known_size(loaded.get("host_bytes"))),
        ("blocks read from disk", _known_size(loaded.get("disk_bytes"))),
        ("a slot", _known_size(loaded.get("slot_bytes"))),
        ("budget", _known_size(made.get("budget_bytes"))),
        ("expected peak", _known_size(made.get("peak_bytes"))),
        ("measured peak", _known_size(found.get("peak_bytes"))),
        ("expected time", _known_s(made.get("step_s"))),
        ("measured time", _known_s(found.get("step_s"))),
        ("bottleneck", str(made.get("bottleneck") or "")),
    ]
    return [row for row in rows if row[1]]


def _data(record: Mapping[str, Any]) -> str:
    get = record.get
    return (
        f"{get('num_samples')} samples of {get('num_rows')} rows ({get('shape')}),"
        f" {get('num_label_tokens')} tokens to learn, {get('max_tokens')} at most in a sample,"
        f" {get('num_truncated')} cut, {get('num_dropped')} left out"
    )


def _total(facts: Facts, name: str) -> float:
    return sum(row[name] or 0.0 for row in facts.steps.values())


def _highest(facts: Facts, name: str) -> float:
    return max((row[name] or 0.0 for row in facts.steps.values()), default=0.0)


def _a_step(seconds: float, count: int) -> str:
    return f"{seconds / count:.3g} s a step"


def _known_size(value: object) -> str:
    num_bytes = number(value)
    return told_size(num_bytes) if num_bytes else ""


def _known_s(value: object) -> str:
    seconds = number(value)
    return f"{seconds:.3g} s a step" if seconds else ""


def _shared(rows: ROWS) -> ROWS:
    """Rows for a file that is sent to others."""
    return [(name, with_tilde(value)) for name, value in rows]


def _setting(value: object) -> str:
    if value is None:
        return "-"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _when(started_s: float, last_s: float) -> str:
    try:
        start, end = (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(s)) for s in (started_s, last_s)
        )
    except (ValueError, OverflowError, OSError):
        return ""
    if not started_s:
        return ""
    zone = time.strftime("%z", time.localtime(last_s))
    return f"{start} to {end[11:] if end[:10] == start[:10] else end} (UTC{zone[:3]}:{zone[3:]})"


def _short(name: str) -> str:
    """A folder's last part; a name as it is."""
    return name.rstrip("/").rpartition("/")[2] or name if name.startswith(("/", ".")) else name


def brief(value: float) -> str:
    """Four digits."""
    return f"{value:.4g}"
