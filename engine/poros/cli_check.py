"""`poros check`: can this model be trained, what is proved of it, how large is it?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from poros.check import Report


def check(model: str, *, as_json: bool) -> int:
    """Print a model's report; the exit code is 0 if it can be trained.

    Raises:
        PorosError: The first reason why it can't, once the report is printed.
    """
    from poros.check import check_model

    report = check_model(model)
    if as_json:
        click.echo(json.dumps(record_of(report), ensure_ascii=False))
    else:
        for name, value in _lines(report):
            click.echo(f"{name:>14}  {value}")
    if report.refusals:
        raise report.refusals[0]
    return 0


def _lines(report: Report) -> list[tuple[str, str]]:
    part = f" (text part of {report.whole})" if report.whole else ""
    words = report.labels
    lines = [
        ("model", report.model),
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
    lines += [("refused", f"{error}") for error in report.refusals]
    return lines if report.refusals else [*lines, ("trains", "yes")]


def record_of(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    return {
        "model": report.model,
        "folder": str(report.folder),
        "model_type": report.model_type,
        "part_of": report.whole or None,
        "trains": not report.refusals,
        "labels": asdict(report.labels),
        "why": report.why,
        "notes": report.notes,
        "stack": asdict(report.stack),
        "prequantised": report.prequantised,
        "sizes": report.sizes and asdict(report.sizes),
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
