"""What a run reports: frozen records in the past tense, one JSON line each.

`events.jsonl`, the headless printer, the app, reports and tests read these same lines. A field's
name carries its unit. Adding one: docs/adding-an-event.md.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Base of all records; ``name`` is the line's ``event`` field."""

    name: ClassVar[str] = ""


_EVENT_TYPES: dict[str, type[Event]] = {}
_FIELD_NAMES: dict[str, tuple[str, ...]] = {}


def _event(cls: type[Event]) -> type[Event]:
    _EVENT_TYPES[cls.name] = cls
    _FIELD_NAMES[cls.name] = tuple(field.name for field in dataclasses.fields(cls))
    return cls


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted(Event):
    """The engine process has its run folder; nothing is loaded yet."""

    name: ClassVar[str] = "run_started"
    run_id: str
    pid: int
    output_dir: str
    model: str
    device: str
    total_steps: int
    resumed_from_step: int | None
    versions: dict[str, str]


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseStarted(Event):
    """Work of one kind began.

    The phases of a start: ``start`` (imports; only its end is told), ``inputs`` (with ``download``
    and ``tokenise``), ``hash``, ``device``, ``load`` or ``quantise``, ``plan`` and ``attach``
    (while the blocks' bytes are still on their way), ``read`` (the rest of them). Later:
    ``train``, ``pause``, ``evaluate``, ``sample``, ``save``.
    """

    name: ClassVar[str] = "phase_started"
    phase: str


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseProgressed(Event):
    """A phase is ``done`` of ``total`` ``unit`` through (total 0: unknown)."""

    name: ClassVar[str] = "phase_progressed"
    phase: str
    done: int
    total: int
    unit: str


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseFinished(Event):
    """A phase ended well."""

    name: ClassVar[str] = "phase_finished"
    phase: str
    duration_s: float


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class DataPrepared(Event):
    """What became of the rows."""

    name: ClassVar[str] = "data_prepared"
    split: str
    shape: str
    num_rows: int
    num_samples: int
    num_truncated: int
    num_dropped: int
    drop_reasons: dict[str, int]
    max_tokens: int
    num_label_tokens: int


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class PlanMade(Event):
    """What of the run will lie where, and what is expected of it.

    ``peak_bytes`` is the allocator's, ``device_bytes`` what the process takes of the card; both are
    0 without a card. ``step_s`` None: unknown. ``from_measured``: a run of this plan is known.
    """

    name: ClassVar[str] = "plan_made"
    num_blocks: int
    resident: list[int]
    num_slots: int
    on_host: list[str]
    head_prefetch: bool
    num_rows: int
    budget_bytes: int | None
    peak_bytes: int
    peak_phase: str
    device_bytes: int
    copied_bytes: int
    step_s: float | None
    bottleneck: str
    from_measured: bool


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class PlanMeasured(Event):
    """What the first steps took, in place of what was expected."""

    name: ClassVar[str] = "plan_measured"
    step: int
    peak_bytes: int
    reserved_bytes: int
    step_s: float
    expected_peak_bytes: int
    expected_step_s: float | None


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLoaded(Event):
    """Where the model's bytes lie."""

    name: ClassVar[str] = "model_loaded"
    model_type: str
    num_blocks: int
    block_bytes: list[int]
    num_slots: int
    slot_bytes: int
    host_bytes: int
    resident_bytes: int
    num_trainable_params: int
    num_adapter_tensors: int
    load_device_peak_bytes: int
    from_cache: bool
    host_tier: str = ""
    disk_bytes: int = 0
    text_class: str = ""
    key_mapping: dict[str, str] = dataclasses.field(default_factory=dict)


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class StepFinished(Event):
    """One optimizer step."""

    name: ClassVar[str] = "step_finished"
    step: int
    epoch: int
    loss: float
    grad_norm: float
    learning_rate: float
    num_tokens: int
    num_label_tokens: int
    duration_s: float
    copied_bytes: int
    copy_wait_s: float
    device_peak_bytes: int
    device_reserved_bytes: int
    host_rss_bytes: int


NUMERIC_STEP_FIELDS = (
    "step",
    "epoch",
    "loss",
    "grad_norm",
    "learning_rate",
    "num_tokens",
    "num_label_tokens",
)
"""The fields of a step that an exact resume must repeat; the others are measurements."""


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryMapped(Event):
    """What lay in memory at a step's peak, by group; the whole map is the file at ``path``."""

    name: ClassVar[str] = "memory_mapped"
    step: int
    path: str
    ran_out: bool
    activations_seen: bool
    peak_bytes: int
    reserved_bytes: int
    device_bytes: dict[str, int]
    host_bytes: dict[str, int]


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class PlanShrunk(Event):
    """The device's memory ran out; a smaller plan is in force and the work is done again.

    ``phase`` is ``forward``, ``backward``, ``norm`` or ``step`` (of ``step``), ``evaluate`` or
    ``sample`` (after it); ``change`` says in words what moved. Bytes are 0 where nobody knows them.
    """

    name: ClassVar[str] = "plan_shrunk"
    step: int
    phase: str
    change: str
    plan: dict[str, Any]
    asked_bytes: int
    in_use_bytes: int
    cap_bytes: int


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFinished(Event):
    """The held-out loss at a step."""

    name: ClassVar[str] = "evaluation_finished"
    step: int
    eval_loss: float
    eval_perplexity: float
    num_label_tokens: int
    duration_s: float


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class SampleGenerated(Event):
    """The model's answer to one prompt; ``stage`` is ``before``, ``during`` or ``after``."""

    name: ClassVar[str] = "sample_generated"
    step: int
    stage: str
    prompt: str
    text: str


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved(Event):
    """A checkpoint is complete on disk."""

    name: ClassVar[str] = "checkpoint_saved"
    step: int
    path: str
    size_bytes: int
    duration_s: float


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written; the ones before it are intact."""

    name: ClassVar[str] = "checkpoint_failed"
    step: int
    reason: str
    needed_bytes: int
    free_bytes: int


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat(Event):
    """The engine process is alive.

    Used and total are the card's, as nvidia-smi says; allocated and reserved are this run's;
    ``device_others_bytes`` None: the driver hides who has what. 0 without a card.
    """

    name: ClassVar[str] = "heartbeat"
    step: int
    phase: str
    host_rss_bytes: int
    device_used_bytes: int
    device_total_bytes: int
    device_allocated_bytes: int = 0
    device_reserved_bytes: int = 0
    device_others_bytes: int | None = None


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class CommandAcknowledged(Event):
    """A command or a signal was taken."""

    name: ClassVar[str] = "command_acknowledged"
    command: str
    detail: str


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(Event):
    """Something to know that stops nothing."""

    name: ClassVar[str] = "warned"
    code: str
    message: str


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished(Event):
    """The run ended by itself or was asked to: status ``finished`` or ``stopped``.

    ``already``: it had finished before this start, which trained nothing.
    """

    name: ClassVar[str] = "run_finished"
    status: str
    step: int
    final_loss: float | None
    adapter_path: str | None
    checkpoint_path: str | None
    duration_s: float
    peak_vram_allocated_bytes: int
    peak_vram_reserved_bytes: int
    exit_code: int
    already: bool = False


@_event
@dataclass(frozen=True, kw_only=True, slots=True)
class RunFailed(Event):
    """The run ended on an error; the fields are its own, `memory` those of PorosOOMError alone."""

    name: ClassVar[str] = "run_failed"
    step: int
    type: str
    code: str
    message: str
    where: str
    remediation: str
    exit_code: int
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)


def to_line(event: Event, *, seq: int, time_s: float) -> str:
    """One strict JSON line with its newline; non-finite numbers become null and are named.

    Args:
        event: The record.
        seq: Its number within the run's event file, from 0.
        time_s: Wall clock, seconds since the epoch; for display only.
    """
    fields = dataclasses.asdict(event)
    not_finite = [k for k, v in fields.items() if isinstance(v, float) and not math.isfinite(v)]
    for key in not_finite:
        fields[key] = None
    head: dict[str, Any] = {"event": event.name, "v": SCHEMA_VERSION, "seq": seq, "time_s": time_s}
    if not_finite:
        head["not_finite"] = not_finite
    return json.dumps(head | fields, ensure_ascii=False, allow_nan=False) + "\n"


def from_line(line: str) -> Event | None:
    """The record of a line; None for an event of a later version, unknown here.

    Raises:
        ValueError: The line is not one that `to_line` writes.
    """
    return from_record(json.loads(line))


def from_record(record: dict[str, Any]) -> Event | None:
    """The record of a line that is parsed already; as `from_line`."""
    kind = _EVENT_TYPES.get(record["event"])
    if kind is None:
        return None
    fields = {name: record[name] for name in _FIELD_NAMES[kind.name] if name in record}
    for name in record.get("not_finite", ()):
        fields[name] = math.nan
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"not a {kind.name} line: {error}") from error
