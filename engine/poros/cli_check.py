"""`poros check`: can this model be trained, what is proved of it, how large is it?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poros.errors import escape_control

if TYPE_CHECKING:
    from poros.check import Report
    from poros.check_memory import Wanted


Command = TypeVar("Command", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)
_OPTIONS = (
    click.option(
        "--vram",
        "vram_gb",
        type=click.FloatRange(min=0, min_open=True),
        metavar="GB",
        help="Plan for so much of a card.",
    ),
    click.option("--seq-len", type=_COUNT, default=2048, help="Tokens of a sample."),
    click.option("--batch", type=_COUNT, default=1, help="Samples of a micro-batch."),
    click.option("--rank", type=_COUNT, default=16, help="Of the adapter."),
)


def check_options(command: Command) -> Command:
    """Give a click command the options of a plan."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check(model: str, *, as_json: bool, **options: Any) -> int:
    """Print a model's report; the exit code is 0 if it can be trained.

    Args:
        model: Folder or name.
        as_json: For scripts.
        options: What a plan is to be made for, by field of `check_memory.Wanted`.

    Raises:
        PorosError: The first reason why it can't, once the report is printed.
    """
    from poros.check import check_model
    from poros.check_memory import Wanted

    wanted = Wanted(**options)
    report = check_model(model, rank=wanted.rank)
    if as_json:
        click.echo(json.dumps(record_of(report, wanted), ensure_ascii=False))
    else:
        for name, value in _lines(report, wanted):
            click.echo(f"{name:>14}  {escape_control(value)}")
    if report.refusals:
        raise report.refusals[0]
    return 0


def _lines(report: Report, wanted: Wanted) -> list[tuple[str, str]]:
    from poros.check_memory import plan_rows

    part = f" (text part of {report.whole})" if report.whole else ""
    words = report.labels
    lines = [
        ("model", report.model),
        *_hub_lines(report),
        ("family", report.model_type + part),
        ("architecture", f"{words.architecture}: {report.why}"),
        ("precision", f"{words.precision} (nf4)"),
        ("stack", f"{words.stack} ({report.stack})"),
    ]
    if report.notes:
        lines.append(("notes", report.notes))
    if (size := report.sizes) is not None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in size.layer_kinds.items())
        lines += [
            ("parameters", f"{size.num_params:,}{', head tied to embeddings' * size.tied}"),
            ("layers", f"{size.num_layers} ({kinds})"),
            ("all", f"{_gb(size.dense_bytes)} in 16 bits, {_gb(size.nf4_bytes)} in NF4"),
            (
                "largest layer",
                f"{_gb(size.dense_layer_bytes)} in 16 bits, {_gb(size.nf4_layer_bytes)} in NF4",
            ),
            ("ends", f"{_gb(size.ends_bytes)}: embeddings, norms, head"),
        ]
        if (linear := size.largest_linear) is not None:
            shape = " x ".join(map(str, linear.shape)) or "packed"
            lines.append(("largest linear", f"{linear.name} ({shape})"))
    if report.prequantised:
        lines.append(("files", "NF4 already"))
    if left_out := report.left_out_bytes:
        size_gb = _gb(sum(left_out.values()))
        lines.append(("left out", f"{len(left_out)} tensors of other parts, {size_gb}"))
    if report.memory is not None:
        lines += plan_rows(report.memory, wanted)
    lines += [("refused", f"{error}") for error in report.refusals]
    return lines if report.refusals else [*lines, ("trains", "yes")]


def _hub_lines(report: Report) -> list[tuple[str, str]]:
    """Where its files are, and what the Hub says of it."""
    lines = [("folder", str(report.folder))] if report.folder else []
    if report.note:
        lines.append(("note", report.note))
    if (facts := report.facts) is not None:
        renamed = f"now {facts.name}, " * facts.is_renamed
        lines += [
            ("on the Hub", f"{renamed}commit {facts.commit[:12]}{', private' * facts.private}"),
            ("licence", facts.licence or "none is given"),
            ("terms", f"gated ({facts.gated})" if facts.gated else "open"),
        ]
        size = facts.download_bytes
        told = f"{_gb(size)} in {len(facts.download)} files" if size is not None else "not told"
        lines.append(("download", "none: its files are here" if report.folder else told))
    if report.has_template is not None:
        told = (
            "yes"
            if report.has_template
            else "none: only data of the shape `text` can be trained on"
        )
        lines.append(("chat template", told))
    return lines


def _hub_record(report: Report) -> dict[str, Any] | None:
    facts = report.facts
    if facts is None:
        return None
    return {
        "name": facts.name,
        "renamed": facts.is_renamed,
        "commit": facts.commit,
        "licence": facts.licence or None,
        "gated": facts.gated or None,
        "private": facts.private,
        "download_bytes": 0 if report.folder else facts.download_bytes,
    }


def record_of(report: Report, wanted: Wanted | None = None) -> dict[str, Any]:
    """The report as JSON has it."""
    from poros.check_memory import Wanted, plan_record

    wanted = wanted or Wanted()
    return {
        "model": report.model,
        "folder": str(report.folder) if report.folder else None,
        "hub": _hub_record(report),
        "note": report.note or None,
        "chat_template": report.has_template,
        "model_type": report.model_type,
        "part_of": report.whole or None,
        "trains": not report.refusals,
        "labels": asdict(report.labels),
        "why": report.why,
        "notes": report.notes,
        "stack": asdict(report.stack),
        "prequantised": report.prequantised,
        "sizes": report.sizes and asdict(report.sizes),
        "plan": plan_record(report.memory, wanted) if report.memory is not None else None,
        "num_left_out": len(report.left_out_bytes),
        "left_out_bytes": sum(report.left_out_bytes.values()),
        "refusals": [
            {
                "type": error.type,
                "code": error.code,
                "exit_code": error.exit_code,
                "message": error.message,
                "where": error.where,
                "remediation": error.remediation,
                "doc_url": error.doc_url,
            }
            for error in report.refusals
        ],
    }


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e7 else f"{num_bytes / 1e6:.3g} MB"
