"""What a run's folder tells, for its report: the events step by step, the config, the memory map.

Everything in it may be half written, garbled or hostile: a line that is none is counted and passed
over, and of a number only a number is taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poros import run_folder, runs
from poros.errors import PorosConfigError
from poros.os_errors import refused
from poros.run_registry import Known
from poros.run_story import Story
from poros.run_story import fold as fold_story

STEP_NUMBERS = (
    "loss", "grad_norm", "learning_rate", "num_tokens", "duration_s", "copied_bytes",
    "copy_wait_s", "device_peak_bytes", "device_reserved_bytes", "host_rss_bytes",
)  # fmt: skip

_UNREADABLE = (
    ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError,
)  # fmt: skip
_MAX_STEP = 2**53
_ABSURD = 1e100

Numbers = dict[str, float | None]
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer; ``stage`` is ``before``, ``during`` or ``after``."""

    step: int
    stage: str
    prompt: str
    text: str


@dataclass(slots=True)
class Facts:
    """A run as its folder has it.

    Attributes:
        known: Where it is.
        state: As in `poros.runs`.
        story: Folded from the same lines.
        steps: Each step's numbers by name; None where one was not finite.
        evals: Held-out losses by step.
        phases: Seconds by phase.
        records: The last record of a kind that is told once: ``plan_made``, ``model_loaded``, ...
        data: The last ``data_prepared`` by split.
        shrinks: Each ``plan_shrunk``.
        memory: The memory map: bytes by group on ``device`` and ``host``; empty if none was made.
        groups: The config's keys and values by group.
        bad_lines: Numbers of event lines that could not be read.
    """

    known: Known
    exact: bool
    state: str = ""
    story: Story = field(default_factory=Story)
    steps: dict[int, Numbers] = field(default_factory=dict)
    evals: dict[int, float | None] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    data: dict[str, Record] = field(default_factory=dict)
    shrinks: list[Record] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    failed_checkpoints: list[tuple[int, str]] = field(default_factory=list)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)
    identity: Record = field(default_factory=dict)
    bad_lines: list[int] = field(default_factory=list)


def read_facts(name: str) -> Facts:
    """All that the run of this folder or number tells.

    Raises:
        PorosConfigError: There is none, it was moved or deleted, or it has no events.
    """
    known = runs.find_run(name)
    about = None if known.gone else run_folder.read_run(known.path)
    if about is None:
        raise runs.gone_error(known.path)
    facts = Facts(known, about.get("exact") is not False)
    facts.identity = found if isinstance(found := about.get("identity"), dict) else {}
    fold_story(facts.story, _fold_lines(facts, known.path / "events.jsonl"))
    facts.state = runs.state_of(known.path, facts.story)
    facts.groups = _config_groups(known.path / "config.yaml")
    _read_map(facts, known.path / "memory_map.json")
    return facts


def number(value: object) -> float | None:
    """A finite number as it is, of anything else None; so is one that no run can have."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if math.isfinite(value) and abs(value) < _ABSURD else None


def _fold_lines(facts: Facts, path: Path) -> Iterator[str]:
    """The file's good lines, each folded into the facts; a tail without its end is left out."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise refused(
            PorosConfigError,
            "the run's events can't be read",
            error,
            where=path,
            remediation="without them there is nothing to report",
        ) from error
    for line_number, raw in enumerate(content.split(b"\n")[:-1], 1):
        try:
            line = raw.decode("utf-8")
            record = json.loads(line)
            fold = _FOLDS.get(record["event"])
            if fold is not None:
                fold(facts, record)
        except _UNREADABLE:
            facts.bad_lines.append(line_number)
        else:
            yield line


def _step(record: Record) -> int:
    step = int(record["step"])
    if not 0 <= step <= _MAX_STEP:
        raise ValueError(f"step {step}")
    return step


def _stepped(facts: Facts, record: Record) -> None:
    facts.steps[_step(record)] = {name: number(record.get(name)) for name in STEP_NUMBERS}


def _evaluated(facts: Facts, record: Record) -> None:
    facts.evals[_step(record)] = number(record["eval_loss"])


def _sampled(facts: Facts, record: Record) -> None:
    texts = (str(record[key]) for key in ("stage", "prompt", "text"))
    facts.samples.append(Sample(_step(record), *texts))


def _warned(facts: Facts, record: Record) -> None:
    facts.warnings.append((str(record["code"]), str(record["message"])))


def _phase_ended(facts: Facts, record: Record) -> None:
    phase = str(record["phase"])
    facts.phases[phase] = facts.phases.get(phase, 0.0) + (number(record["duration_s"]) or 0.0)


def _prepared(facts: Facts, record: Record) -> None:
    facts.data[str(record["split"])] = record


def _kept(facts: Facts, record: Record) -> None:
    facts.records[record["event"]] = record


def _saved(facts: Facts, record: Record) -> None:
    facts.checkpoints.append(_step(record))


def _not_saved(facts: Facts, record: Record) -> None:
    facts.failed_checkpoints.append((_step(record), str(record["reason"])))


def _shrunk(facts: Facts, record: Record) -> None:
    facts.shrinks.append(record)


def _mapped(facts: Facts, record: Record) -> None:
    facts.memory = {place: _sizes(record[f"{place}_bytes"].items()) for place in ("device", "host")}


_FOLDS: dict[str, Callable[[Facts, Record], None]] = {
    "step_finished": _stepped,
    "evaluation_finished": _evaluated,
    "sample_generated": _sampled,
    "warned": _warned,
    "phase_finished": _phase_ended,
    "data_prepared": _prepared,
    "plan_made": _kept,
    "plan_measured": _kept,
    "model_loaded": _kept,
    "run_finished": _kept,
    "checkpoint_saved": _saved,
    "checkpoint_failed": _not_saved,
    "plan_shrunk": _shrunk,
    "memory_mapped": _mapped,
}


def _sizes(pairs: Iterable[tuple[object, object]]) -> dict[str, int]:
    sizes = {str(name): int(number(num_bytes) or 0) for name, num_bytes in pairs}
    return {name: num_bytes for name, num_bytes in sizes.items() if num_bytes > 0}


def _read_map(facts: Facts, path: Path) -> None:
    """The file has the highest peak of all; where it can't be read, the last event stands."""
    try:
        record = json.loads(path.read_bytes())
        groups = _sizes((group["name"], group["num_bytes"]) for group in record["groups"])
        facts.memory = {"device": groups, "host": _sizes(record["host"].items())}
    except (OSError, *_UNREADABLE):
        return


def _config_groups(path: Path) -> dict[str, dict[str, Any]]:
    """The resolved config by its groups; a file that can't be read has none."""
    from poros.config_yaml import read_document
    from poros.errors import PorosError

    try:
        values = dict(read_document(path).values)
        text = path.read_text("utf-8")
    except (PorosError, OSError, ValueError):
        return {}
    group, found = "", dict[str, dict[str, Any]]()
    for line in text.splitlines():
        if line.startswith("# "):
            group = line[2:].strip()
        key = line.partition(":")[0]
        if key in values:
            found.setdefault(group, {})[key] = values.pop(key)
    if values:
        found.setdefault(group, {}).update(values)
    return found
