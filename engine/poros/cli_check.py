"""`poros check`: can this model be trained, what is proved of it, how large is it?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from poros.cli_answers import Gigabytes
from poros.cli_guard import tell
from poros.errors import escape_control

if TYPE_CHECKING:
    from poros.check import Report
    from poros.check_memory import Wanted
    from poros.errors import PorosOOMError
    from poros.memory_planner import Rates
    from poros.plan_history import About, Measured


Command = TypeVar("Command", bound=Callable[..., Any])

_COUNT = click.IntRange(min=1)
_RATE = click.FloatRange(min=0, min_open=True)
_OPTIONS = (
    click.option(
        "--vram",
        "vram_gb",
        type=Gigabytes(),
        metavar="GB",
        help="Plan for so much of a card, CUDA's own part included.",
    ),
    click.option("--seq-len", type=_COUNT, default=2048, help="Tokens of a sample."),
    click.option("--batch", type=_COUNT, default=1, help="Samples of a micro-batch."),
    click.option(
        "--link", "link_gb_s", type=_RATE, metavar="GB/S", help="Of the link to the card."
    ),
    click.option("--tflops", type=_RATE, help="Of the card, dense bfloat16, as it reaches them."),
    click.option("--rank", type=_COUNT, default=16, help="Of the adapter."),
    click.option("--table", is_flag=True, help="Also which sample lengths fit which cards."),
)


def check_options(command: Command) -> Command:
    """Give a click command the options of a plan."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check(
    model: str,
    *,
    as_json: bool,
    link_gb_s: float | None = None,
    tflops: float | None = None,
    table: bool = False,
    **options: Any,
) -> int:
    """Print a model's report; the exit code is 0 if it can be trained, else the first reason's.

    A card that was named and is too small is such a reason.

    Args:
        model: Folder or name.
        as_json: For scripts.
        link_gb_s: Of the link to the card; None: as `poros doctor` measured it.
        tflops: Of the card; None: as `poros doctor` measured it.
        table: Whether to plan several sample lengths for several cards too.
        options: What a plan is to be made for, by field of `check_memory.Wanted`.

    Raises:
        PorosError: There is no report.
    """
    from poros.check import check_model
    from poros.check_memory import Wanted, misfit

    wanted = Wanted(**options)
    report = check_model(model, rank=wanted.rank)
    short = misfit(report.memory, wanted) if report.memory is not None else None
    rates, rates_of = _rates(link_gb_s, tflops)
    if as_json:
        record = record_of(report, wanted, rates, rates_of)
        if table:
            record["table"] = _table_record(report, wanted, rates)
            record["measured"] = [_measured_record(*one) for one in _history(report)]
        click.echo(json.dumps(record, ensure_ascii=False))
    else:
        for name, value in _lines(report, wanted, rates, rates_of, short):
            click.echo(f"{name:>14}  {escape_control(value)}")
        if table and report.memory is not None:
            _print_table(report, wanted, rates)
    # Told, not raised: with --json the report on stdout has it already.
    reasons = [*report.refusals, *([short] if short is not None else [])]
    return tell(reasons[0]) if reasons else 0


def _history(report: Report) -> list[tuple[About, Measured]]:
    """What runs of this model measured on the cards that are here."""
    from poros.check_table import gpus_here
    from poros.plan_history import runs_about

    names = {report.model, *([str(report.folder)] if report.folder else [])}
    return runs_about(names, {gpu.name for gpu in gpus_here()})


def _measured_record(about: About, run: Measured) -> dict[str, object]:
    from poros.memory_sizes import CONTEXT_BYTES

    return {
        "card": about.card,
        "tokens": about.num_rows,
        "rank": about.rank,
        "device_bytes": run.reserved_bytes + CONTEXT_BYTES,
        "step_s": run.step_s or None,
        "ran_out": run.ran_out,
    }


def _table_record(report: Report, wanted: Wanted, rates: Rates) -> dict[str, object] | None:
    from poros.check_table import fit_table, gpus_here, table_record

    if report.memory is None:
        return None
    history = _history(report)
    return table_record(fit_table(report.memory, wanted, rates, gpus=gpus_here(), history=history))


def _print_table(report: Report, wanted: Wanted, rates: Rates) -> None:
    from poros.check_table import fit_table, gpus_here, table_lines

    assert report.memory is not None
    history = _history(report)
    click.echo()
    for line in table_lines(
        fit_table(report.memory, wanted, rates, gpus=gpus_here(), history=history)
    ):
        click.echo(line)


def _rates(link_gb_s: float | None, tflops: float | None) -> tuple[Rates, str]:
    """What the time of a step is computed from, and where that comes from."""
    from poros.check_needs import merged
    from poros.machine_rates import kept_rates
    from poros.memory_planner import Rates

    given = Rates(link_gb_s * 1e9 if link_gb_s else None, tflops * 1e12 if tflops else None)
    if link_gb_s and tflops:
        return given, "rates as given"
    name, measured = kept_rates() or ("", None)
    what = f"measured on {name}" if name else ""
    is_partly = name and (link_gb_s or tflops)
    return merged(given, measured), f"one rate as given, one {what}" if is_partly else what


def _lines(
    report: Report, wanted: Wanted, rates: Rates, rates_of: str, short: PorosOOMError | None
) -> list[tuple[str, str]]:
    from poros.check_memory import plan_rows, trains_row
    from poros.check_needs import need_rows, needs

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
        found = needs(report.memory, wanted, rates, prequantised=report.prequantised)
        lines += need_rows(found, download_bytes=_download(report), rates=rates, rates_of=rates_of)
    lines += [("refused", f"{error}") for error in report.refusals]
    if report.refusals:
        return lines
    return [*lines, trains_row(wanted, short)]


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
        "download_bytes": _download(report),
    }


def _download(report: Report) -> int | None:
    """Bytes of the model's files that are not here; None: not known."""
    if report.folder is not None or report.facts is None:
        return 0
    return report.facts.download_bytes


def _need_record(
    report: Report, wanted: Wanted, rates: Rates | None, rates_of: str
) -> dict[str, object] | None:
    from poros.check_needs import need_record, needs

    if report.memory is None:
        return None
    found = needs(report.memory, wanted, rates, prequantised=report.prequantised)
    return need_record(found, download_bytes=_download(report), rates_of=rates_of)


def record_of(
    report: Report,
    wanted: Wanted | None = None,
    rates: Rates | None = None,
    rates_of: str = "",
) -> dict[str, Any]:
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
        "needs": _need_record(report, wanted, rates, rates_of),
        "num_left_out": len(report.left_out_bytes),
        "left_out_bytes": sum(report.left_out_bytes.values()),
        "refusals": [error.record() for error in report.refusals],
    }


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e7 else f"{num_bytes / 1e6:.3g} MB"
