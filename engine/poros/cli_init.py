"""`poros init`: writes a config to start from."""

from __future__ import annotations

from pathlib import Path

import click

from poros.cli_answers import print_json, safe


def init(path: Path, *, model: str, data: str, force: bool, as_json: bool) -> int:
    """Write the file and say what it was sized for.

    Args:
        path: The YAML file; ``-`` is stdout.
        model: Folder or name.
        data: File or name.
        force: Whether a file that is there may be written over.
        as_json: For scripts.

    Raises:
        PorosOutputError: The file is there already.
    """
    from poros import init_file
    from poros.rows import refuse_missing

    is_stdout = str(path) == "-"
    if not is_stdout:
        _refuse_taken(path, force=force)
    refuse_missing(data)
    schedule = init_file.schedule_for(data)
    sizes, note = init_file.model_sizes(model)
    sized = init_file.size_for(sizes, _card_bytes())
    name = "train" if is_stdout else path.stem
    settings = {
        "model_name_or_path": model,
        "dataset": data,
        "output_dir": f"{name}-run",
        **sized.settings,
        **schedule.settings,
    }
    notes = [*sized.notes, *schedule.notes, *filter(None, [note])]
    text = init_file.render(settings, [f"poros train {'FILE' if is_stdout else path}", *notes])
    if not is_stdout:
        _write(path, text)
    notes += schedule.problems  # what is mended in the data need not stand in the file
    if as_json:
        written = {"yaml": text} if is_stdout else {}
        print_json({"path": str(path), "settings": settings, "notes": notes, **written})
        return 0
    if is_stdout:
        click.echo(text, nl=False)
        return 0
    click.echo(f"wrote {safe(str(path))}")
    for each in notes:
        click.echo(f"  {safe(each)}")
    click.echo(f"next: poros train {safe(str(path))} --dry-run, then without it")
    return 0


def _refuse_taken(path: Path, *, force: bool) -> None:
    from poros.errors import PorosOutputError

    if path.is_dir() or (path.exists() and not force):
        raise PorosOutputError(
            "the file is there already" if path.is_file() else "a folder has that name",
            where=safe(str(path)),
            remediation="choose another name, or --force to write over it",
        )
    if not path.absolute().parent.is_dir():
        raise PorosOutputError(
            "the file's folder is missing",
            where=safe(str(path)),
            remediation=f"mkdir -p {safe(str(path.parent))}",
        )


def _write(path: Path, text: str) -> None:
    from poros import atomic

    atomic.write_file(path, text)


def _card_bytes() -> int | None:
    import os

    from poros.doctor_gpu import read_driver, visible_gpus

    gpus = visible_gpus(read_driver(), os.environ)
    return max((gpu.total_bytes for gpu in gpus), default=None)
