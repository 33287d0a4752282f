"""`poros report`: a run as one file to read or to send, HTML or Markdown."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from poros.cli_answers import print_json, safe

_STDOUT = Path("-")


def report(run: str, *, output: Path | None, as_markdown: bool, force: bool, as_json: bool) -> int:
    """Write a run's report.

    Args:
        run: Its folder, or the beginning of its number.
        output: The file, ``-`` is stdout; None: into the run's folder.
        as_markdown: Markdown instead of HTML.
        force: Write over a file that is no report.
        as_json: Say in JSON what was written.

    Raises:
        PorosError: There is no such run, or the file can't be written.
    """
    from poros import report_page, report_text
    from poros.report_facts import read_facts
    from poros.report_view import view_of

    facts = read_facts(run)
    view = view_of(facts)
    form, mark = ("md", report_text.MARK) if as_markdown else ("html", report_page.MARK)
    text = report_text.markdown(view) if as_markdown else report_page.page(view)
    # Of undecodable bytes in paths nothing can be shown.
    content = text.encode("utf-8", "replace")
    if output == _STDOUT:
        _refuse_json(as_json)
        sys.stdout.write(content.decode())
        return 0
    path = output or facts.known.path / f"report.{form}"
    _refuse_other_file(path, mark, force=force)
    _write(path, content)
    if as_json:
        print_json({
            "path": str(path), "format": form, "num_bytes": len(content),
            "run_id": facts.known.run_id, "state": facts.state,
            "lead": view.lead, "notes": view.notes,
        })  # fmt: skip
        return 0
    for note in [*([] if facts.state == "finished" else [view.lead]), *view.notes]:
        click.echo(f"note: {safe(note)}", err=True)
    click.echo(f"{safe(str(path))} ({len(content) / 1e3:.0f} kB)")
    return 0


def _refuse_json(as_json: bool) -> None:
    from poros.errors import PorosConfigError

    if as_json:
        raise PorosConfigError(
            "the report and --json can't both go to stdout", remediation="give -o a file"
        )


def _refuse_other_file(path: Path, mark: str, *, force: bool) -> None:
    from poros.errors import PorosOutputError, escape_control

    where = escape_control(str(path))
    if path.is_dir():
        raise PorosOutputError(
            "a folder has that name", where=where, remediation="give -o a file's name"
        )
    if not path.parent.is_dir():
        raise PorosOutputError(
            "the folder for the report is not there", where=where, remediation="make it first"
        )
    if force or not os.path.lexists(path):
        return
    try:
        with path.open("rb") as file:
            is_report = file.read(len(mark)) == mark.encode()
    except OSError:
        is_report = False
    if not is_report:
        raise PorosOutputError(
            "the file is there and is no report of this form",
            where=where,
            remediation="choose another name, or --force writes over it",
        )


def _write(path: Path, content: bytes) -> None:
    from poros.atomic import write_file
    from poros.errors import PorosOutputError
    from poros.os_errors import refused

    try:
        write_file(path, content)
    except OSError as error:
        raise refused(
            PorosOutputError,
            "the report can't be written",
            error,
            where=path,
            remediation="give -o a place that can be written",
        ) from error
