"""`poros init`: a commented config for a model and data, sized for a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poros.check_memory import Wanted, planned
from poros.errors import PorosDataError, PorosError, PorosHubError, escape_control
from poros.home_paths import typed_path
from poros.memory_sizes import ModelSizes
from poros.row_shapes import detect_shape
from poros.rows import read_rows
from poros.told_sizes import told_size

_SAMPLES = 8
"""Of an optimizer step, as the defaults have it: micro-batches are sized, results are not."""
_LENGTHS = (2048, 1024, 512, 256)
_CPU_LENGTH = 512
_ROOM = 0.93
"""Of a card: the rest is for the desktop, and for what an estimate may miss."""
_COUNTED_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv")
_MOST_COUNTED_BYTES = 10**8
_USUAL_WARMUP = 100
"""The default of warmup_steps."""
_FEWEST_STEPS, _MOST_EPOCHS = 20, 10
"""A handful of rows is seen more than once: a step or two would change nothing that shows."""


@dataclass(frozen=True)
class Sized:
    """Settings for a machine, and why.

    Attributes:
        settings: By key of the config.
        notes: In words, for the head of the file.
        problems: What is to be mended before a run, in words.
    """

    settings: dict[str, Any]
    notes: list[str]
    problems: list[str] = field(default_factory=list)


def model_sizes(model: str) -> tuple[ModelSizes | None, str]:
    """Sizes of a model whose files are here, and a note where they can't be told.

    Raises:
        PorosError: The files are here, and it can't be trained.
    """
    from poros.check import check_model

    try:
        report = check_model(model)
    except PorosHubError:
        return None, f"{model} is not here yet: `hf download {model}`, then `poros check {model}`"
    if report.refusals:
        raise report.refusals[0]
    return report.memory, "" if report.memory else "the model's sizes can't be told from its files"


def size_for(sizes: ModelSizes | None, card_bytes: int | None) -> Sized:
    """The longest samples and the largest micro-batch that fit.

    Args:
        sizes: Of the model; None: unknown.
        card_bytes: Of the card; None: there is none.
    """
    if card_bytes is None:
        return Sized({"max_seq_length": _CPU_LENGTH}, ["no GPU here: sized for the CPU"])
    card = f"{card_bytes / 1e9:.0f} GB"
    if sizes is None:
        return Sized({}, [f"a card of {card}; the defaults, since the model's sizes are unknown"])
    for length in _LENGTHS:
        for batch in (8, 4, 2, 1):
            wanted = Wanted(card_bytes * _ROOM / 1e9, length, batch)
            try:
                device_bytes = planned(sizes, wanted).device_bytes
            except PorosError:
                continue
            told = f"expected to take {told_size(device_bytes, 1)} of the card's {card}"
            settings = {
                "max_seq_length": length,
                "per_device_batch_size": batch,
                "gradient_accumulation_steps": _SAMPLES // batch,
            }
            return Sized(settings, [f"{batch} x {length} tokens are {told}"])
    note = f"not even {_LENGTHS[-1]} tokens are expected to fit into {card}: poros check says more"
    return Sized({"max_seq_length": _LENGTHS[-1]}, [note])


def schedule_for(data: str) -> Sized:
    """A warm-up that a small file leaves room for, and how often it is seen; else nothing.

    Raises:
        PorosDataError: The file has no row, or lines that can't be read.
    """
    path = typed_path(data)
    is_read = path.suffix.lower() in _COUNTED_SUFFIXES and path.is_file()
    if not is_read or path.stat().st_size > _MOST_COUNTED_BYTES:
        return Sized({}, [])
    rows = read_rows(path, "skip")
    num_rows = len(rows)
    if not rows:
        raise PorosDataError(
            "no rows", where=escape_control(data), remediation="give a file with rows in it"
        )
    problems = []
    try:
        detect_shape(rows)
    except PorosDataError as error:
        problems.append(f"not to be trained on yet: {error}")
    num_epochs = usual_epochs(num_rows)
    num_steps = num_epochs * -(-num_rows // _SAMPLES)
    if num_steps >= 10 * _USUAL_WARMUP:
        return Sized({}, [], problems)
    warmup = num_steps // 10
    seen = "1 row, seen" if num_rows == 1 else f"{num_rows} rows, each seen"
    often = "once" if num_epochs == 1 else f"{num_epochs} times (num_epochs)"
    steps = f"{num_steps} optimizer step{'s' * (num_steps > 1)}"
    settings = {"warmup_steps": warmup} | ({"num_epochs": num_epochs} if num_epochs > 1 else {})
    note = f"{seen} {often}, are {steps}, {warmup} of them to warm up"
    return Sized(settings, [note], problems)


def usual_epochs(num_rows: int, in_step: int = _SAMPLES) -> int:
    """How often rows are seen: a handful more than once, for some steps that show.

    Args:
        num_rows: Of the data.
        in_step: Samples of an optimizer step.
    """
    return min(-(-_FEWEST_STEPS // -(-num_rows // in_step)), _MOST_EPOCHS)


def render(settings: Mapping[str, Any], head: Sequence[str]) -> str:
    """The config's text: given keys are set, all others stand there as comments.

    Args:
        settings: By key; checked.
        head: Lines for the top.

    Raises:
        PorosConfigError: Settings that can't be.
    """
    from poros.config import PorosConfig, field_schemas
    from poros.config_load import yaml_text

    config = PorosConfig(**settings)
    lines = [f"# {escape_control(line)}" for line in head]
    group = None
    for key, schema in field_schemas().items():
        if schema["group"] != group:
            group = schema["group"]
            lines += ["", f"# === {group} ==="]
        off = "" if key in settings else "# "
        lines.append(f"# {schema['description'].strip()}")
        lines.append(f"{off}{key}: {yaml_text(getattr(config, key))}")
    return "\n".join(lines) + "\n"
