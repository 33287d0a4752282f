"""`poros data`: how rows are read, what is trained of them, and what is lost."""

from __future__ import annotations

from statistics import median
from typing import Any

import click

from poros.cli_answers import as_json_option, print_json, safe
from poros.cli_guard import call_engine, tell

MAPPINGS = {
    "messages": "messages: each turn's role and content",
    "sharegpt": "conversations: from is the role (human, gpt, system), value the text",
    "alpaca": "instruction and input are asked, output is answered",
    "prompt_completion": "prompt is asked, completion is answered",
    "text": "text is learned as it stands",
    "synthetic": "random tokens",
    "tokens": "token ids as they are",
}
_NUM_BARS = 8
_BAR_WIDTH = 30
_MOST_LINES = 8
_MOST_CHARACTERS = 2000
_MOST_ROWS = 3
_ROW_CHARACTERS = 300
_LENGTH = click.IntRange(min=1)


@click.command("data")
@click.argument("data")
@click.option("-m", "--model", help="Folder or name: its tokenizer and template.")
@click.option("--split", default="train", show_default=True, help="Of a data set of the Hub.")
@click.option("--max-seq-length", "--seq-len", type=_LENGTH, default=2048, show_default=True)
@click.option(
    "--train-on",
    type=click.Choice(["completions", "everything"]),
    default="completions",
    show_default=True,
)
@click.option("--overlong", type=click.Choice(["truncate", "drop"]), default="truncate")
@click.option("--on-bad-line", type=click.Choice(["error", "skip"]), default="error")
@click.option("--line", type=click.IntRange(min=1), help="Row of the sample that is shown.")
@click.option("--samples", "num_shown", type=_LENGTH, default=1, help="Of them in the JSON.")
@as_json_option
def data(data: str, model: str | None, *, as_json: bool, **options: Any) -> int:
    """Show how DATA is read: its shape, a sample with what is trained marked, and what is lost.

    DATA is a file, a data set's name on the Hub, or synthetic[:n]. Of the model only tokenizer and
    config are fetched. Without a model a file's rows are shown as they stand; that needs no torch.
    The exit code is 3 if no run could train on them.
    """
    from poros.rows import refuse_missing

    refuse_missing(data)  # now, not after seconds of imports
    if model is None:
        from poros.data_raw import rows_and_fault

        found, fault = rows_and_fault(data, on_bad_line=options["on_bad_line"])
        print_json(found) if as_json else _show_raw(found)
        return tell(fault) if fault else 0
    show = print_json if as_json else _show
    return call_engine("poros.training.data_preview", "preview", data, model, show, **options)


def _show(found: dict[str, Any]) -> None:
    for name, value in lines(found):
        click.echo(f"{name:>10}  {safe(value)}")
    click.echo(f"    sample  row {found['sample']['line']}; what is trained stands in « »:")
    click.echo()
    click.echo(marked(found["sample"]["pieces"]))


def _show_raw(found: dict[str, Any]) -> None:
    for name, value in raw_lines(found):
        click.echo(f"{name:>10}  {safe(value)}")
    for row in found["rows"][:_MOST_ROWS]:
        click.echo(f"\n{'row':>10}  {row['line']}")
        shown = [(turn["role"], turn["text"]) for turn in row["turns"] or ()]
        for name, value in shown or row["fields"].items():
            click.echo(f"{safe(name)[:10]:>10}  {_short(value)}")


def raw_lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is told above raw rows.

    Args:
        found: The record of `data_raw.raw_rows`.
    """
    shape = found["shape"]
    at_least = "at least " * found["is_cut"]
    told = [
        ("data", found["data"]),
        ("shape", f"{shape}: {MAPPINGS.get(shape, '')}" if shape else "none that is known"),
        ("rows", f"{at_least}{found['num_rows']:,}"),
        ("keys", ", ".join(f"{k['name']} ({' or '.join(k['kinds'])})" for k in found["keys"])),
        ("duplicates", _duplicates(found["duplicates"])),
    ]
    if found["problem"]:
        told.append(("problem", found["problem"]))
    told += [("left out", line) for line in found["bad_lines"][:_MOST_LINES]]
    return [*told, ("", "name a model (--model) to see tokens and what is trained")]


def _short(text: str) -> str:
    told = safe(text)
    return told if len(told) <= _ROW_CHARACTERS else f"{told[:_ROW_CHARACTERS]}..."


def lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    """What is told above the sample.

    Args:
        found: The record of `data_preview.preview`.
    """
    shape = found["shape"]
    told = [
        ("data", found["data"]),
        ("shape", f"{shape}: {MAPPINGS.get(shape, '')}"),
        ("rows", f"{found['num_rows']:,}, of which {found['num_samples']:,} samples were made"),
    ]
    if not found["warnings"]:
        told.append(("lost", "nothing"))
    told += [("warning", warning) for warning in found["warnings"]]
    told.append(("duplicates", _duplicates(found["duplicates"])))
    trained, tokens = found["num_label_tokens"], found["num_tokens"]
    told.append(
        ("tokens", f"{tokens:,}, of which {trained:,} are trained ({100 * trained / tokens:.0f} %)")
    )
    lengths = found["lengths"]
    told.append(
        (
            "lengths",
            f"{lengths[0]} to {lengths[-1]} tokens, half of them up to {median(lengths):.0f};"
            f" the longest row has {found['longest']}, max_seq_length is {found['max_seq_length']}",
        )
    )
    return told + [("", bar) for bar in bars(lengths)]


def bars(lengths: list[int]) -> list[str]:
    """A histogram of lengths; each line has its upper end.

    Args:
        lengths: In tokens, ascending.
    """
    low, high = lengths[0], lengths[-1]
    num_bars = min(_NUM_BARS, high - low + 1)
    counts = [0] * num_bars
    for length in lengths:
        counts[(length - low) * num_bars // (high - low + 1)] += 1
    ends = [low + -(-(k + 1) * (high - low + 1) // num_bars) - 1 for k in range(num_bars)]
    most = max(counts)
    return [
        f"up to {end:>6}  {'█' * -(-count * _BAR_WIDTH // most):<{_BAR_WIDTH}} {count}"
        for end, count in zip(ends, counts, strict=True)
    ]


def marked(pieces: list[tuple[str, bool]]) -> str:
    """A sample for the terminal: trained pieces in « », and in colour where there is one."""
    left, told = _MOST_CHARACTERS, []
    for text, is_trained in pieces:
        shown = "\n".join(map(safe, text[:left].split("\n")))
        left -= len(text)
        told.append(click.style(f"«{shown}»", fg="green", bold=True) if is_trained else shown)
        if left <= 0:
            told.append(f"\n... and {-left:,} more characters" if left else "")
            break
    return "".join(told)


def _duplicates(pairs: list[tuple[int, int]]) -> str:
    if not pairs:
        return "none"
    shown = ", ".join(f"{line} (as {first})" for line, first in pairs[:_MOST_LINES])
    more = ", ..." if len(pairs) > _MOST_LINES else ""
    what = "1 sample is another" if len(pairs) == 1 else f"{len(pairs):,} samples are others"
    return f"{what} once more: row{'s' * (len(pairs) > 1)} {shown}{more}"
